"""All cases."""

import rnh_faults_a
import rnh_faults_b
import rnh_healthy_a
import rnh_healthy_b

__all__ = ["rnh_faults_a", "rnh_faults_b", "rnh_healthy_a", "rnh_healthy_b"]
