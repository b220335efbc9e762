"""Columns, batches and the records that hold them."""
