"""All cases of this examiner."""

import seq_lm  # noqa: F401
import seq_text  # noqa: F401
import seq_series  # noqa: F401
import seq_signal  # noqa: F401
import seq_fine  # noqa: F401
import seq_plain  # noqa: F401
