"""All cases of this part."""

import wtg_faults_graph  # noqa: F401
import wtg_faults_series  # noqa: F401
import wtg_faults_text  # noqa: F401
import wtg_sound_graph  # noqa: F401
import wtg_sound_text  # noqa: F401
