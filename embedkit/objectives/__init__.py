"""From a batch to gradients: losses, gradient caching. Imports layer 4 (data, models) and below."""
