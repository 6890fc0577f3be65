"""The version of Forerun; ``pyproject.toml`` reads it from here."""

VERSION = "0.2.0"
__version__ = VERSION
