"""The files of each packaged data set: pinned SHA-256 digests, URLs and licences.

The digests belong to the files that the authors published, with one exception. `CIFAR10_DECODED` is CIFAR-10
with 139 of the 60,000 images re-encoded as JPEG. Its batches differ from the authors' (`PINNED["cifar10"]`)
in those records. `tools/decode_cifar.py` makes them from a re-packed CIFAR-10.

Licences: MNIST CC BY-SA 3.0; Fashion-MNIST MIT; QMNIST labels BSD; gas turbine (UCI 551) CC BY 4.0;
CIFAR-10 states none, cite Krizhevsky 2009; tinyshakespeare public domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file: its path below the data folder, its SHA-256 in hex, and its URL.

    `member` names the file inside the archive at `url`. It is None if `url` is the file itself.
    """

    path: str
    sha256: str
    url: str | None = None
    member: str | None = None


def _files(
    folder: str, digests: Mapping[str, str], url: str | None = None, member: str | None = None
) -> tuple[DataFile, ...]:
    """Files of one folder by name. {} in `url` and in `member` is the name of the file."""
    return tuple(
        DataFile(
            path=f"{folder}/{name}",
            sha256=digest,
            url=url and url.format(name),
            member=member and member.format(name),
        )
        for name, digest in digests.items()
    )


_MNIST = _files(
    "mnist",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/{}",
)

_FASHION_MNIST = _files(
    "fashion_mnist",
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}",
)

_WRITERS = _files(
    "mnist_writers",
    {
        "qmnist-train-labels-idx2-int.gz": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        "qmnist-test-labels-idx2-int.gz": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    },
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/{}",
)

_GAS_TURBINE = _files(
    "gas_turbine",
    {
        "gt_2011.csv": "d87ceef9aa59533cc7d924d10de241b1b06ecd11f9b26bab59191ea0f8a76b9a",
        "gt_2012.csv": "be54b9d0e1a7de40c55d32fa489e75de892b000c066b5a09f09a19124ee29100",
        "gt_2013.csv": "13c437bb440ec2045bd12057e6654c41dd4107a661eac16ba2e878e897a08f9e",
        "gt_2014.csv": "c2a03c92c9c3207aad0c6be7de8d9b5b4bfa4720ad0efb2c1f21b6cec4d3f3fa",
        "gt_2015.csv": "9b08f35fde0d4b138232a605db4093c2b8bf9d6757e6f1fbd9534ad616c13591",
    },
    "https://archive.ics.uci.edu/static/public/551/gas+turbine+co+and+nox+emission+data+set.zip",
    "{}",
)

GAS_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "AT": (-6.23, 37.10),
    "AP": (985.85, 1036.56),
    "AH": (24.08, 100.20),
    "AFDP": (2.09, 7.61),
    "GTEP": (17.70, 40.72),
    "TIT": (1000.85, 1100.89),
    "TAT": (511.04, 550.61),
    "TEY": (100.02, 179.50),
    "CDP": (9.85, 15.16),
    "CO": (0.00, 44.10),
    "NOX": (25.90, 119.91),
}
"""Least and largest value of each variable, published by UCI (Gas Turbine CO and NOx Emission Data Set, data
set 551, table of variables). Units: degrees C, mbar, %, mbar, mbar, degrees C, degrees C, MWh, bar and twice
mg/m3. They are public constants and are not computed from the records. So scaling a record reads no other
record."""

_CIFAR10 = _files(
    "cifar10",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-batches-bin/{}",
)

CIFAR10_DECODED = _files(
    "cifar10/decoded",
    {
        "data_batch_1.bin": "db694dd42c44398249040e423641d002a64cbda550a2ec110a9621d5056dab7b",
        "data_batch_2.bin": "ab618d97c0f60060cbe239395fc6a5ca13be7ca5a9a9672af4d48eb3df251a1b",
        "data_batch_3.bin": "f03495d171c0833d122c4c60d0250d6314b3c277f6438b82d81e71cb49bd476b",
        "data_batch_4.bin": "d7c312924c9da203ff53e1dc4b6f6eee84a47d59d0fe3f5f023f1d80f01aea84",
        "data_batch_5.bin": "fac1f56413e32aeecd42ad369e7f1955716e6e67e356724576492ef12a21a825",
        "test_batch.bin": "3f7010f5855423b8de3f72b1ee0acb6dd69d8d7dbde577bf05bcf82ed272d6c1",
    },
)

_SHAKESPEARE = _files(
    "shakespeare",
    {"tinyshakespeare.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
)

PINNED: Final[Mapping[str, tuple[DataFile, ...]]] = {
    "digits": (),  # ships inside scikit-learn
    "mnist": _MNIST,
    "fashion_mnist": _FASHION_MNIST,
    "cifar10": _CIFAR10,
    "gas_turbine": _GAS_TURBINE,
    "qmnist": _MNIST + _WRITERS,
    "shakespeare": _SHAKESPEARE,
}

NAMES = tuple(PINNED)
"""The names of the packaged data sets, which `securefl.data.load` accepts."""
