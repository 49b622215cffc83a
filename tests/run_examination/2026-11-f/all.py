"""All modules of this folder."""

import rnf_images  # noqa: F401
import rnf_sequences  # noqa: F401
import rnf_tables  # noqa: F401
