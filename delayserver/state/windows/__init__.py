"""Windows and days beside their files: incomplete, closed, drained, retired."""
