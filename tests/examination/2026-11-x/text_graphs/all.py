"""All cases of this part."""

import xtg_finetune  # noqa: F401
import xtg_graph_cases  # noqa: F401
import xtg_lm  # noqa: F401
import xtg_retrieve  # noqa: F401
import xtg_series  # noqa: F401
import xtg_sound_more  # noqa: F401
import xtg_sound_plain  # noqa: F401
import xtg_texts  # noqa: F401
