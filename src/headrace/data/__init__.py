"""Tables, orders, readers, sources, batches, and the feed that brings batches to the device.

A table answers for rows by number, an order says which come when, and a source gives them batch by batch, each with a
cursor to go on from. It calls `store`.
"""
