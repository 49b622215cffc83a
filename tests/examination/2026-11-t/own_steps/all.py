import tos_f1  # noqa: F401
import tos_f2  # noqa: F401
import tos_f3  # noqa: F401
import tos_s1  # noqa: F401
import tos_s2  # noqa: F401
import tos_s3  # noqa: F401
