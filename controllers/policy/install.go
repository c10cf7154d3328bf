// Package policy puts the shipped QTLSPolicies into the cluster.
//
// The operator does it rather than the chart, for Helm looks up every kind of a
// release before it creates the first object: a chart that holds both a
// CustomResourceDefinition and an object of that kind cannot be installed.
package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/policy/shipped"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=qtlspolicies,verbs=create

// retry is how the API server is asked again when it did not take a policy: later
// and later, and every minute in the end.
var retry = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 1 << 30, Cap: time.Minute}

// Installer creates the shipped policies that the cluster lacks, when the
// operator becomes the leader. One that is there stays as it is: policies are
// immutable, and an older operator's names keep their meaning.
type Installer struct {
	Client client.Client
}

// Start implements manager.Runnable. It returns when every policy is there.
func (i *Installer) Start(ctx context.Context) error {
	missing, err := shipped.Policies()
	if err != nil {
		return err
	}
	// Not wait.ExponentialBackoff, which gives up when the cap is reached.
	_ = retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		missing = slices.DeleteFunc(missing, func(p *v1alpha1.QTLSPolicy) bool {
			err := i.create(ctx, p)
			if err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "trying again")
			}
			return err == nil
		})
		return len(missing) == 0, nil
	})
	return nil // where the operator ends first its next leader goes on
}

func (i *Installer) create(ctx context.Context, p *v1alpha1.QTLSPolicy) error {
	wanted := p.DeepCopy()
	wanted.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.LabelManagedByValue}
	err := i.Client.Create(ctx, wanted, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("QTLSPolicy %q: %w", p.Name, err)
	}
	return nil
}
