"""Pages, one a kind of audit: what a report says of its findings, in blocks."""
