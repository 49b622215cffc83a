"""All cases of this part."""

import vis_clean  # noqa: F401
import vis_usual  # noqa: F401
import vis_wrong_data  # noqa: F401
import vis_wrong_net  # noqa: F401
import vis_wrong_run  # noqa: F401
