"""All cases."""

import classify_sound  # noqa: F401
import classify_tables  # noqa: F401
import convnets  # noqa: F401
import convnets_sound  # noqa: F401
import dense_images  # noqa: F401
import dense_sound  # noqa: F401
import finetuning  # noqa: F401
import finetuning_sound  # noqa: F401
import recommend_and_rank  # noqa: F401
import recommend_sound  # noqa: F401
import regress_sound  # noqa: F401
import regress_tables  # noqa: F401
import signals_points  # noqa: F401
import signals_sound  # noqa: F401
