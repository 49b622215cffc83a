"""All cases."""

import vtg_graph_faults  # noqa: F401
import vtg_lm_faults  # noqa: F401
import vtg_other_sound  # noqa: F401
import vtg_seq_faults  # noqa: F401
import vtg_text_sound  # noqa: F401
