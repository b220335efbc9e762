"""Windows and days beside their files: incomplete, closed, drained, retired.

A missing or cut file of a window is damage. The checkpoint carries it in `lost` until the file is back or `recover
rebuild` ends that.
"""
