"""Commands that the published systems bring."""
