package gateway

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/rings"
	"qtls.dev/qtls/internal/ticketstore"
)

const ringID = "5f0c9b6f3c1d4e7a8b2d6e9f0a1b2c3d"

// sharing is a gateway of two pods that share the keys of epoch 7.
func sharing(t *testing.T) (inputs, plan) {
	t.Helper()
	in := sound()
	in.Model.Tickets = &model.Tickets{Ring: ringID, LifetimeSeconds: 60, RotationSeconds: 60}
	p := publish(t, &in)
	for _, name := range []string{"web-1", "web-2"} {
		in.add(name, true, &dataplane.Status{Running: p.Assignment.Stable, Tickets: &dataplane.TicketStatus{Ring: ringID, Epoch: 7}})
	}
	in.Resumption.Epochs = map[string]uint64{ringID: 7}
	return in, p
}

// ringSecret remembers a ring for gateways of these UIDs.
func ringSecret(name string, owners ...types.UID) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.LabelManagedByValue}}}
	for _, uid := range owners {
		s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "qtls.dev/v1alpha1", Kind: "QTLSGateway", Name: string(uid), UID: uid})
	}
	return s
}

// A change of the spec may take days to be served: a policy or a ring that is held,
// tried or rejected. Until then the operator that starts next needs to know of the
// ring whose keys the pods have.
func TestAGatewayLeavesOnlyRingsThatItDoesNotNeed(t *testing.T) {
	const wanted, former = "11111111111111111111111111111111", "22222222222222222222222222222222"
	in, p := sharing(t)
	in.Gateway.Namespace, in.Gateway.UID = "shop", "web"
	in.Model.Tickets = &model.Tickets{Ring: wanted}
	c := fake.NewClientBuilder().WithObjects(
		ringSecret(rings.SecretName(ringID), "web"), ringSecret(rings.SecretName(wanted), "web", "green"),
		ringSecret(rings.SecretName(former), "web", "green"), ringSecret(rings.SecretName("33"), "web"), ringSecret(rings.SecretName("44"), "green"),
		ringSecret("ticket-ring.blue-green", "web"), ringSecret("web-ticket-ring", "web"), // of an earlier release
		ringSecret("web-tickets", "web"),
	).Build()
	r := &Reconciler{Client: c}
	owners := func() map[string]string {
		all := &corev1.SecretList{}
		if err := c.List(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		owners := map[string]string{}
		for _, s := range all.Items {
			for _, o := range s.OwnerReferences {
				owners[s.Name] += " " + o.Name
			}
		}
		return owners
	}
	left := func(want map[string]string) {
		t.Helper()
		if again, err := r.leaveRings(t.Context(), in.Gateway, remembered(in, p)); again || err != nil {
			t.Fatal(again, err)
		}
		if got := owners(); !reflect.DeepEqual(got, want) {
			t.Errorf("owners are %v\nwant %v", got, want)
		}
	}
	want := map[string]string{rings.SecretName(ringID): " web", rings.SecretName(wanted): " web green",
		rings.SecretName(former): " green", rings.SecretName("44"): " green", "web-tickets": " web"}
	left(want)

	// A spec that nothing can be made of is no reason: pods go on.
	in.Published, p = &published{Revisions: p.Revisions}, plan{}
	left(want)

	// Where no session is resumed, no ring is needed.
	in.Gateway.Spec.SessionResumption.Mode = v1alpha1.SessionResumptionDisabled
	delete(want, rings.SecretName(ringID))
	want[rings.SecretName(wanted)] = " green"
	left(want)
}

// Who keeps a ring for others writes its Secret at the same moment.
func TestASecretThatSomebodyElseHasJustWrittenIsLeftTheNextTime(t *testing.T) {
	in, _ := sharing(t)
	in.Gateway.Namespace, in.Gateway.UID = "shop", "web"
	conflict := apierrors.NewConflict(corev1.Resource("secrets"), "", errors.New("it was written meanwhile"))
	conflicts := true
	c := fake.NewClientBuilder().WithObjects(
		ringSecret(rings.SecretName("11"), "web"), ringSecret(rings.SecretName("22"), "web", "green"), ringSecret(rings.SecretName("33"), "web"),
	).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if conflicts && o.GetName() == rings.SecretName("11") {
				return conflict
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if conflicts {
				return conflict
			}
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	r := &Reconciler{Client: c}
	for _, remain := range []int{2, 1} {
		again, err := r.leaveRings(t.Context(), in.Gateway, nil)
		if err != nil || again != conflicts {
			t.Fatalf("conflicts: %v; to be looked at again: %v, %v", conflicts, again, err)
		}
		all := &corev1.SecretList{}
		if err := c.List(t.Context(), all); err != nil || len(all.Items) != remain {
			t.Errorf("%d Secrets are left, want %d (%v)", len(all.Items), remain, err)
		}
		conflicts = false
	}
}

func TestAgentsKeepWhatIsNotKnownOtherwise(t *testing.T) {
	store := func(address string) *ticketstore.Connection {
		return &ticketstore.Connection{Addresses: []string{address}}
	}
	ring := func(least uint64) dataplane.RingAccess {
		return dataplane.RingAccess{Stored: "stored", LeastEpoch: least}
	}
	former := dataplane.TicketAccess{Store: store("former:6379"), Rings: map[string]dataplane.RingAccess{"a": ring(1), "b": ring(1)}}
	for _, c := range []struct {
		name   string
		wanted []string
		store  *ticketstore.Connection
		access map[string]dataplane.RingAccess
		want   dataplane.TicketAccess
	}{
		{"nothing is known yet", []string{"a", "b"}, nil, nil, former},
		{"all is known", []string{"a"}, store("new:6379"), map[string]dataplane.RingAccess{"a": ring(2)},
			dataplane.TicketAccess{Store: store("new:6379"), Rings: map[string]dataplane.RingAccess{"a": ring(2)}}},
		{"one ring is known", []string{"a", "b"}, store("new:6379"), map[string]dataplane.RingAccess{"b": ring(2)},
			dataplane.TicketAccess{Store: store("new:6379"), Rings: map[string]dataplane.RingAccess{"a": ring(1), "b": ring(2)}}},
		{"the store cannot be found", []string{"a"}, nil, map[string]dataplane.RingAccess{"a": ring(2)},
			dataplane.TicketAccess{Store: store("former:6379"), Rings: map[string]dataplane.RingAccess{"a": ring(2)}}},
		{"a ring that nobody wants any more", nil, store("former:6379"), nil,
			dataplane.TicketAccess{Store: store("former:6379"), Rings: map[string]dataplane.RingAccess{}}},
		{"a ring that nobody knew", []string{"c"}, store("former:6379"), nil,
			dataplane.TicketAccess{Store: store("former:6379"), Rings: map[string]dataplane.RingAccess{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := resumption{Agent: c.store}
			s.Access = c.access
			if got := ticketAccess(former, c.wanted, s); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestResumptionIsSaidToBeWhatItIs(t *testing.T) {
	const meanwhile = "; handshakes do not depend on it, and pods go on with the keys that they have"
	pod := func(in *inputs, i int) *dataplane.TicketStatus { return in.Observed[i].Status.Tickets }
	for _, c := range []struct {
		name   string
		change func(*inputs)
		reason string
		says   string
	}{
		{"all share", func(*inputs) {}, v1alpha1.ReasonShared, "clients resume on each of 2 ready pods: they share the gateway's keys"},
		{"a shared ring", func(in *inputs) { in.Gateway.Spec.SessionResumption.Ring = "blue-green" }, v1alpha1.ReasonShared, `they share the keys of ring "blue-green"`},
		{"one rotation apart", func(in *inputs) { pod(in, 0).Epoch = 6 }, v1alpha1.ReasonShared, "each of 2 ready pods"},
		{"two rotations apart", func(in *inputs) { pod(in, 0).Epoch = 5 }, v1alpha1.ReasonProgressing, "pod web-1 has epoch 5 of 7"},
		{"disabled", func(in *inputs) { in.Gateway.Spec.SessionResumption.Mode = v1alpha1.SessionResumptionDisabled }, v1alpha1.ReasonDisabled, "spec.sessionResumption.mode is Disabled: every handshake is a full one"},
		{"nothing is terminated", func(in *inputs) { in.Gateway.Spec.Listeners[0].Protocol = v1alpha1.ProtocolTLSPassthrough }, v1alpha1.ReasonNoTerminatedTLS, "no listener terminates TLS"},
		{"no pods wanted", func(in *inputs) { in.Gateway.Spec.Replicas = ptr.To[int32](0) }, v1alpha1.ReasonNoPods, "spec.replicas is 0"},
		{"a wrong reference", func(in *inputs) {
			in.Resumption.Problem = &resolve.Problem{Reason: v1alpha1.ReasonStoreInvalid, Message: "spec.x: wrong; do y"}
		}, v1alpha1.ReasonStoreInvalid, "spec.x: wrong; do y" + meanwhile},
		{"an object of somebody else's", func(in *inputs) {
			in.Resumption.NotApplied = conditions.Stalled(v1alpha1.ReasonNotApplied, "Secret %q exists", "web-redis")
		}, v1alpha1.ReasonNotApplied, `Secret "web-redis" exists` + meanwhile},
		{"the store's pods do not start", func(in *inputs) {
			in.Resumption.Err, in.Resumption.NotReady = ticketstore.ErrUnreachable, "0 of 1 pods are ready"
		}, v1alpha1.ReasonStoreNotReady, "the ticket store is not ready: 0 of 1 pods are ready" + meanwhile},
		{"the store is away", func(in *inputs) {
			in.Resumption.Err = errors.Join(fmt.Errorf("a:1: %w", ticketstore.ErrUnreachable), fmt.Errorf("b:1: %w", ticketstore.ErrUnreachable))
		}, v1alpha1.ReasonStoreUnreachable, "the operator cannot write to the ticket store: a:1: cannot be reached; b:1: cannot be reached" + meanwhile},
		{"a wrong password", func(in *inputs) { in.Resumption.Err = fmt.Errorf("a:1: %w", ticketstore.ErrCredentials) },
			v1alpha1.ReasonStoreRefusesAccess, "the ticket store refuses the operator: a:1: the server refuses the user name or password"},
		{"the ring is not published yet", func(in *inputs) { in.Resumption.Epochs = nil }, v1alpha1.ReasonProgressing, "the keys are on their way to the ticket store"},
		{"a pod that cannot read", func(in *inputs) { pod(in, 1).Problem = "the store is away" }, v1alpha1.ReasonStoreUnreachable, "pod web-2: the store is away"},
		{"a pod with keys of its own", func(in *inputs) { pod(in, 1).Epoch, pod(in, 1).Problem = 0, "the store is away" },
			v1alpha1.ReasonPodsWithKeysOfOwn, "clients of these pods resume there alone: pod web-2: the store is away"},
		{"a pod that has just started", func(in *inputs) { pod(in, 1).Epoch = 0 }, v1alpha1.ReasonProgressing, "pod web-2 has keys of its own still"},
		{"a pod that has not answered", func(in *inputs) { in.Observed[0].Status = nil }, v1alpha1.ReasonProgressing, "pod web-1 has not said which keys it has"},
		{"a pod of another configuration", func(in *inputs) { pod(in, 0).Ring = "other" }, v1alpha1.ReasonProgressing, "pod web-1 runs another configuration"},
		{"a pod that is not ready does not count", func(in *inputs) { in.Observed[0].Ready, pod(in, 0).Epoch = false, 0 }, v1alpha1.ReasonShared, "each of 1 ready pods"},
		{"none is ready", func(in *inputs) { in.Observed[0].Ready, in.Observed[1].Ready = false, false }, v1alpha1.ReasonPodsNotReady, "no pod is ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, p := sharing(t)
			c.change(&in)
			status := summarise(in, p, nil, now)
			got := condition(t, status, v1alpha1.ConditionSessionResumption)
			if got.Reason != c.reason || !strings.Contains(got.Message, c.says) || (got.Status == "True") != (c.reason == v1alpha1.ReasonShared) {
				t.Errorf("%s %s: %s\nwant %s: %s", got.Status, got.Reason, got.Message, c.reason, c.says)
			}
			if p := condition(t, status, v1alpha1.ConditionProgrammed); in.Observed[0].Status != nil && in.Observed[0].Ready && p.Reason != v1alpha1.ReasonProgrammed && c.reason != v1alpha1.ReasonNoPods {
				t.Errorf("Programmed depends on it: %s %s", p.Reason, p.Message)
			}
		})
	}
}
