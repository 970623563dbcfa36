"""Values of the update log in Ignite's binary protocols 1 and 2 (docs/design/catalogs.md#values).

`codec` decodes and encodes, `canonical` shows a value as JSON, `registry` is the table of serializers.
"""
