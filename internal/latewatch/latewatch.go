// Package latewatch lets a controller watch a kind of somebody else's whose
// CRD may be installed after the controller has started, or never.
package latewatch

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Interval is how often it looks whether the kind is there.
const Interval = 5 * time.Second

// Kind is a kind that may not be installed yet.
type Kind struct {
	gvk       schema.GroupVersionKind
	mapper    meta.RESTMapper
	watch     func() error
	known     atomic.Bool
	installed atomic.Bool
}

// Add calls watch once, when the manager runs and the kind is installed.
func Add(mgr ctrl.Manager, gvk schema.GroupVersionKind, watch func() error) (*Kind, error) {
	k := &Kind{gvk: gvk, mapper: mgr.GetRESTMapper(), watch: watch}
	return k, mgr.Add(k)
}

// Known says whether it has been found out yet if the kind is there.
func (k *Kind) Known() bool { return k.known.Load() }

// Installed says whether the kind is there and watched.
func (k *Kind) Installed() bool { return k.installed.Load() }

// Start implements manager.Runnable.
func (k *Kind) Start(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, Interval, true, func(context.Context) (bool, error) {
		_, err := k.mapper.RESTMapping(k.gvk.GroupKind(), k.gvk.Version)
		if err == nil {
			return true, nil
		}
		if meta.IsNoMatchError(err) && k.known.CompareAndSwap(false, true) {
			ctrl.LoggerFrom(ctx).Info("a kind is not there; looking for it until it is", "kind", k.gvk.String(), "error", err.Error())
		}
		return false, nil
	})
	if err != nil {
		return nil // the manager ends
	}
	if err := k.watch(); err != nil {
		return err
	}
	k.installed.Store(true)
	k.known.Store(true)
	return nil
}
