package policy

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
)

func newClient(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

func TestMissingPoliciesAreCreatedAndOthersLeftAsTheyAre(t *testing.T) {
	kept := &v1alpha1.QTLSPolicy{}
	kept.Name, kept.Spec.Description = "hybrid-v1", "as an earlier release shipped it"
	c := newClient(t, interceptor.Funcs{}, kept)

	if err := (&Installer{Client: c}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	var all v1alpha1.QTLSPolicyList
	if err := c.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	descriptions := map[string]string{}
	for _, p := range all.Items {
		descriptions[p.Name] = p.Spec.Description
	}
	if len(descriptions) != 5 || descriptions["cnsa2-v1"] == "" || descriptions["pqc-only-v1"] == "" || descriptions["kpqc-v1"] == "" || descriptions["compatible-v1"] == "" {
		t.Errorf("there are %v, want the five shipped policies", descriptions)
	}
	if got := descriptions["hybrid-v1"]; got != kept.Spec.Description {
		t.Errorf("hybrid-v1 was changed: %q", got)
	}
}

// However long it does not take one of them: no other waits for that.
func TestAnAPIServerThatDoesNotTakeAPolicyIsAskedAgain(t *testing.T) {
	before := retry
	retry.Duration, retry.Cap = time.Millisecond, 4*time.Millisecond
	t.Cleanup(func() { retry = before })
	refused, taken := 0, 0
	c := newClient(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if o.GetName() == "compatible-v1" && (refused < 10 || taken < 4) {
				refused++
				return errors.New("not now")
			}
			taken++
			return c.Create(ctx, o, opts...)
		},
	})

	if err := (&Installer{Client: c}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	var all v1alpha1.QTLSPolicyList
	if err := c.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	if refused != 10 || len(all.Items) != 5 {
		t.Errorf("after %d refusals there are %d policies, want 5 after 10", refused, len(all.Items))
	}
}

func TestTheOperatorsEndEndsTheInstaller(t *testing.T) {
	c := newClient(t, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return errors.New("never")
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&Installer{Client: c}).Start(ctx); err != nil {
		t.Errorf("the end of the operator is not an error: %v", err)
	}
}
