package conditions

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Write makes the status of after that of the object, where it was read as
// before; it says whether it did. An object that has changed since, or is gone,
// is left as it is, without an error: before came from a cache that is behind,
// and so is what was made of it. The change on its way to the cache brings the
// next reconciliation, so a controller that writes with it must watch its own
// objects for every change, those of their status included.
func Write(ctx context.Context, w client.SubResourceWriter, before, after client.Object) (bool, error) {
	err := w.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("status of %T %s: %w", after, client.ObjectKeyFromObject(after), err)
	}
	return true, nil
}
