"""Does speculative decoding pay here, with this draft, at this load, and is it still the same model answering?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("speculative-toolkit")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"
