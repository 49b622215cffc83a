"""All cases of this part."""

import generative  # noqa: F401
import graphs  # noqa: F401
import images  # noqa: F401
import picture_tasks  # noqa: F401
import sound_odd  # noqa: F401
import sound_odder  # noqa: F401
import sound_ordinary  # noqa: F401
import sound_trained  # noqa: F401
import tables  # noqa: F401
import tables_training  # noqa: F401
import transfer  # noqa: F401
