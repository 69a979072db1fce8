"""gradleak tells you what a shared gradient gives away.

Some 45 names stand here, all others in namespaces (`gradleak.attacks`, `gradleak.risk`, ...), as `gradleak list` prints
them. They are loaded on first use, so that importing the package, `gradleak --help` and reports need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
