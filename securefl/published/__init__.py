"""Published tables: figures as constants, the studies that measure them again, and both side by side."""
