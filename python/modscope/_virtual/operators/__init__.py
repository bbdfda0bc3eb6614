"""Run operators without computing: shapes, views, known values, sparse tensors."""
