"""The findings of the kinds of audits, a file each; loaded by the registry alone."""
