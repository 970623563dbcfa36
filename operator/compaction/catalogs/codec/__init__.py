"""Values of the update log in Ignite's binary protocols 1 and 2 (docs/design/catalogs.md#values).

`codec` decodes and encodes by the table of serializers, `canonical` shows a value as JSON.
"""
