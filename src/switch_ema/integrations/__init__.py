"""Weight averaging in other people's trainers, one module per library.

``switch_ema.integrations.lightning``, ``.transformers``, ``.accelerate``, ``.ignite``,
``.mmengine``, ``.timm`` and ``.keras``. Each imports its own library and nothing else;
where that is missing, the import says what to install.
"""
