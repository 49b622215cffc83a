"""All cases of this part."""

import adapted  # noqa: F401
import attending  # noqa: F401
import forecast  # noqa: F401
import generative  # noqa: F401
import language  # noqa: F401
import metric  # noqa: F401
import padded  # noqa: F401
import recurrent  # noqa: F401
