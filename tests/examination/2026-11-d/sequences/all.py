"""All cases of this part."""

import attention  # noqa: F401
import blocks  # noqa: F401
import forecasting  # noqa: F401
import language  # noqa: F401
import recommend  # noqa: F401
import recurrent  # noqa: F401
import recurrent_data  # noqa: F401
import sound_odd  # noqa: F401
import sound_odder  # noqa: F401
import sound_ordinary  # noqa: F401
import sound_trained  # noqa: F401
import text_losses  # noqa: F401
