"""Weight averaging for common trainers, one module per library.

``switch_ema.integrations.lightning``, ``.transformers``, ``.accelerate``, ``.ignite``,
``.mmengine``, ``.timm`` and ``.keras``. Each imports only its own library; if
that is missing, the import error says what to install.
"""
