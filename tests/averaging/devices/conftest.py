"""Leave out what an older torch does not have."""

from torch.utils import backend_registration

HAS_PYTHON_BACKENDS = hasattr(
    backend_registration, "_setup_privateuseone_for_python_backend"
)
collect_ignore = [] if HAS_PYTHON_BACKENDS else ["test_simulated.py"]
