# SPDX-License-Identifier: Apache-2.0
"""What one node can say about itself, section by section (node side, standard library only)."""
