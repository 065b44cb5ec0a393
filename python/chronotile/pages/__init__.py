"""Pages with figures, shared by the reports: one style, and plots drawn as SVG."""
