package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/owned"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rings"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

// resumption is what a reconciliation knows of session tickets: the store, and
// how the rings are in it.
type resumption struct {
	// Operator's and agents' connections to the store; nil while there is none.
	Operator, Agent *ticketstore.Connection
	// Problem with the store's spec, or nil.
	Problem *resolve.Problem
	// Objects of a store of the gateway's own.
	Objects []client.Object
	// Renew is when one of them is to be made anew; zero: never.
	Renew time.Time
	// LookAgain is after how long a store may have changed that is not watched;
	// zero: it is.
	LookAgain time.Duration
	// NotReady says what a store of the gateway's own waits for, where the rings
	// do not get into it.
	NotReady string
	// NotApplied is why an object could not be written; nil when all were.
	NotApplied error
	rings.State
}

// ticketStore finds the store of a gateway, or makes what an embedded one is
// made of.
func (r *Reconciler) ticketStore(ctx context.Context, g *v1alpha1.QTLSGateway, o resolve.Objects, now time.Time) (resumption, error) {
	switch {
	case !resolve.Resumes(g):
		return resumption{}, nil
	case resolve.TicketStoreType(g) == v1alpha1.TicketStoreExternal:
		store, problem := resolve.ExternalStore(g, o)
		if problem != nil {
			return resumption{Problem: problem}, nil
		}
		return resumption{Operator: &store.Operator, Agent: &store.Agent}, nil
	case resolve.TicketStoreType(g) == v1alpha1.TicketStoreRedisOperator:
		return r.redisOperatorStore(ctx, g, now)
	}
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: resources.RedisName(g.Name)}, secret)
	if client.IgnoreNotFound(err) != nil {
		return resumption{}, fmt.Errorf("Secret %s: %w", resources.RedisName(g.Name), err)
	}
	credentials, reason, err := embedded.Ensure(secret.Data, resources.RedisHosts(g), now)
	if err != nil {
		return resumption{}, err
	}
	if reason != nil && secret.Data != nil {
		ctrl.LoggerFrom(ctx).Info("the ticket store gets new credentials", "secret", secret.Name, "reason", reason.Error())
	}
	s := resumption{Renew: credentials.RenewAt()}
	if s.Objects, err = resources.Redis(g, r.Settings, credentials); err != nil {
		return resumption{}, err
	}
	// What could not be stored would be another the next time, which is at once
	// when the connection changes.
	if stored, err := embedded.Parse(secret.Data); err == nil && metav1.IsControlledBy(secret, g) {
		operator, agent := resources.RedisConnection(g, stored, embedded.Operator), resources.RedisConnection(g, stored, embedded.Agent)
		s.Operator, s.Agent = &operator, &agent
	}
	return s, nil
}

// wantedRings is what the gateway's revisions need: no rings where no session is
// resumed.
func wantedRings(g *v1alpha1.QTLSGateway, p plan, s resumption) *rings.Wanted {
	w := &rings.Wanted{Owner: metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "QTLSGateway", Name: g.Name, UID: g.UID}}
	if !resolve.Resumes(g) {
		return w
	}
	_, w.Rotation = resolve.TicketTimes(g)
	w.Rings, w.Drop, w.Store = p.rings(), g.Annotations[v1alpha1.AnnotationDropTickets], s.Operator
	if resources.Replicas(g) == 0 {
		w.Store = nil // nobody reads
	}
	return w
}

// ticketAccess is what the agents are to know, who know the former. What is not
// known at the moment stays as it was: an operator that has just started has yet
// to read the rings' records, and a store that cannot be found now may be found
// again in the next moment. It is pure.
func ticketAccess(former dataplane.TicketAccess, wanted []string, s resumption) dataplane.TicketAccess {
	a := dataplane.TicketAccess{Store: cmp.Or(s.Agent, former.Store), Rings: map[string]dataplane.RingAccess{}}
	for _, id := range wanted {
		ring, known := s.Access[id]
		if !known {
			ring, known = former.Rings[id]
		}
		if known {
			a.Rings[id] = ring
		}
	}
	return a
}

// formerTicketAccess is what the gateway's agents know. What does not parse, or
// is somebody else's, counts as not there.
func (r *Reconciler) formerTicketAccess(ctx context.Context, g *v1alpha1.QTLSGateway) (dataplane.TicketAccess, error) {
	secret, access := &corev1.Secret{}, dataplane.TicketAccess{}
	name := dataplane.TicketsSecretName(g.Name)
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return access, fmt.Errorf("Secret %s: %w", name, err)
	}
	if !metav1.IsControlledBy(secret, g) || json.Unmarshal(secret.Data[dataplane.KeyTickets], &access) != nil {
		return dataplane.TicketAccess{}, nil
	}
	return access, nil
}

// ticketObjects are those that the agents need for session tickets.
func (r *Reconciler) ticketObjects(ctx context.Context, g *v1alpha1.QTLSGateway, wanted []string, s resumption) ([]client.Object, error) {
	if !resolve.Resumes(g) {
		return nil, nil
	}
	var former dataplane.TicketAccess
	unknown := func(ring string) bool { _, ok := s.Access[ring]; return !ok }
	if s.Agent == nil || slices.ContainsFunc(wanted, unknown) {
		var err error
		if former, err = r.formerTicketAccess(ctx, g); err != nil {
			return nil, err
		}
	}
	access, err := json.Marshal(ticketAccess(former, wanted, s))
	if err != nil {
		return nil, err
	}
	// A store that cannot be made does not keep the rest from them.
	return append([]client.Object{resources.TicketsSecret(g, map[string][]byte{dataplane.KeyTickets: access})}, s.Objects...), nil
}

// unwanted are the objects of an earlier spec: those of an embedded store, and
// what agents needed for tickets.
func unwanted(g *v1alpha1.QTLSGateway) []client.Object {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: g.Namespace, Name: name} }
	var objects []client.Object
	if !storesIn(g, v1alpha1.TicketStoreEmbedded) {
		name := at(resources.RedisName(g.Name))
		objects = append(objects, &appsv1.StatefulSet{ObjectMeta: name}, &corev1.Service{ObjectMeta: name}, &corev1.Secret{ObjectMeta: name},
			&networkingv1.NetworkPolicy{ObjectMeta: name}, &policyv1.PodDisruptionBudget{ObjectMeta: name})
	}
	if !resolve.Resumes(g) {
		objects = append(objects, &corev1.Secret{ObjectMeta: at(dataplane.TicketsSecretName(g.Name))})
	}
	return objects
}

// storesIn says whether a gateway has a store of a type.
func storesIn(g *v1alpha1.QTLSGateway, kind v1alpha1.TicketStoreType) bool {
	return resolve.Resumes(g) && resolve.TicketStoreType(g) == kind
}

// remembered are the rings whose records the gateway needs, by ID: those of what
// its pods serve or try, also where that is of an earlier spec, and that of what
// it is to serve. It is pure.
func remembered(in inputs, p plan) []string {
	if !resolve.Resumes(in.Gateway) {
		return nil
	}
	ids := p.rings()
	if t := in.Model.Tickets; t != nil {
		ids = append(ids, t.Ring)
	}
	if !p.Published() { // pods go on with what was
		ids = append(ids, plan{Revisions: in.Published.revisions()}.rings()...)
	}
	return ids
}

// remembersRings says whether a Secret of the operator's remembers rings of a
// gateway, by its name. Earlier releases had one for all rings of a name.
func remembersRings(g *v1alpha1.QTLSGateway, secret string) bool {
	return strings.HasPrefix(secret, rings.SecretPrefix) || secret == g.Name+"-ticket-ring"
}

// leaveRings takes the gateway off the Secrets that remember rings, but for those
// of the rings that it needs. The last one that leaves takes the Secret with it.
// One that somebody else has just written, such as who keeps the ring for others,
// is to be looked at again: nothing is wrong with it.
func (r *Reconciler) leaveRings(ctx context.Context, g *v1alpha1.QTLSGateway, needed []string) (again bool, err error) {
	kind := corev1.SchemeGroupVersion.WithKind("Secret")
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(kind.GroupVersion().WithKind("SecretList"))
	if err := r.List(ctx, secrets, client.InNamespace(g.Namespace), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.LabelManagedByValue}); err != nil {
		return false, fmt.Errorf("Secrets: %w", err)
	}
	for _, s := range secrets.Items {
		if !remembersRings(g, s.Name) || slices.ContainsFunc(needed, func(id string) bool { return s.Name == rings.SecretName(id) }) {
			continue
		}
		s.SetGroupVersionKind(kind)
		before := s.DeepCopy()
		s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == g.UID })
		var err error
		switch {
		case len(s.OwnerReferences) == len(before.OwnerReferences):
		case len(s.OwnerReferences) == 0:
			err = r.Delete(ctx, &s, client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion})
		default:
			err = r.Patch(ctx, &s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		}
		if apierrors.IsConflict(err) {
			again = true
			continue
		}
		if client.IgnoreNotFound(err) != nil {
			return again, fmt.Errorf("Secret %s: %w", s.Name, err)
		}
	}
	return again, nil
}

// remove an object if it is the gateway's own.
func (r *Reconciler) remove(ctx context.Context, g *v1alpha1.QTLSGateway, o client.Object) error {
	kind, err := r.GroupVersionKindFor(o)
	if err != nil {
		return err
	}
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(kind)
	if err := r.readerOf(o).Get(ctx, client.ObjectKeyFromObject(o), existing); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !slices.ContainsFunc(existing.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == g.UID }) {
		return nil
	}
	return owned.Remove(ctx, r.Client, existing)
}

// storeWaitsFor says why an embedded store's pods do not run, as far as it can
// be seen.
func (r *Reconciler) storeWaitsFor(ctx context.Context, g *v1alpha1.QTLSGateway) string {
	set := &appsv1.StatefulSet{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: resources.RedisName(g.Name)}, set)
	switch {
	case apierrors.IsNotFound(err):
		return "it is being created"
	case err != nil: // the gateway is served all the same
		return fmt.Sprintf("StatefulSet %q cannot be read: %v", resources.RedisName(g.Name), err)
	case set.Status.ReadyReplicas < resources.RedisReplicas(g):
		return fmt.Sprintf("%d of %d pods of StatefulSet %q are ready; `kubectl describe pods -l app.kubernetes.io/name=qtls-redis,app.kubernetes.io/instance=%s` says why",
			set.Status.ReadyReplicas, resources.RedisReplicas(g), set.Name, g.Name)
	}
	return ""
}

// resumed says whether a client resumes its session on every replica.
func resumed(in inputs, p plan) verdict {
	g, s := in.Gateway, in.Resumption
	const meanwhile = "; handshakes do not depend on it, and pods go on with the keys that they have"
	switch {
	case g.Spec.SessionResumption.Mode == v1alpha1.SessionResumptionDisabled:
		return verdict{false, v1alpha1.ReasonDisabled, "spec.sessionResumption.mode is Disabled: every handshake is a full one"}
	case !resolve.Resumes(g):
		return verdict{false, v1alpha1.ReasonNoTerminatedTLS, "no listener terminates TLS: there are no sessions to resume"}
	case s.Problem != nil:
		return verdict{false, s.Problem.Reason, s.Problem.Message + meanwhile}
	case !p.Published():
		return verdict{false, v1alpha1.ReasonPending, "there is nothing to serve yet (see the other conditions)"}
	case resources.Replicas(g) == 0:
		return verdict{false, v1alpha1.ReasonNoPods, "spec.replicas is 0: there are no pods to share keys"}
	case s.NotApplied != nil:
		reason := v1alpha1.ReasonNotApplied
		if p, ok := conditions.AsProblem(s.NotApplied); ok {
			reason = p.Reason
		}
		return verdict{false, reason, s.NotApplied.Error() + meanwhile}
	case s.NotReady != "":
		return verdict{false, v1alpha1.ReasonStoreNotReady, "the ticket store is not ready: " + s.NotReady + meanwhile}
	}
	stable := p.Revisions[p.Assignment.Stable.Revision].Tickets
	ready := 0
	var away, own, behind []string
	for _, pod := range in.Observed {
		if !pod.Ready || pod.Terminating {
			continue
		}
		ready++
		switch t := statusOfTickets(pod.Status); {
		case t == nil:
			behind = append(behind, "pod "+pod.Name+" has not said which keys it has")
		case stable == nil || t.Ring != stable.Ring:
			behind = append(behind, fmt.Sprintf("pod %s runs another configuration", pod.Name))
		case t.Epoch == 0 && t.Problem == "":
			behind = append(behind, fmt.Sprintf("pod %s has keys of its own still", pod.Name))
		case t.Epoch == 0:
			own = append(own, fmt.Sprintf("pod %s: %s", pod.Name, t.Problem))
		case t.Problem != "":
			away = append(away, fmt.Sprintf("pod %s: %s", pod.Name, t.Problem))
		case t.Epoch+1 < s.Epochs[stable.Ring]: // one rotation apart they open each other's tickets
			behind = append(behind, fmt.Sprintf("pod %s has epoch %d of %d", pod.Name, t.Epoch, s.Epochs[stable.Ring]))
		}
	}
	switch {
	case len(own) > 0:
		return verdict{false, v1alpha1.ReasonPodsWithKeysOfOwn, "clients of these pods resume there alone: " + strings.Join(append(own, away...), "; ")}
	case errors.Is(s.Err, ticketstore.ErrCredentials), errors.Is(s.Err, ticketstore.ErrPermission):
		return verdict{false, v1alpha1.ReasonStoreRefusesAccess, fmt.Sprintf("the ticket store refuses the operator: %s%s", oneLine(s.Err), meanwhile)}
	case s.Err != nil:
		return verdict{false, v1alpha1.ReasonStoreUnreachable, fmt.Sprintf("the operator cannot write to the ticket store: %s%s", oneLine(s.Err), meanwhile)}
	case stable == nil || s.Epochs[stable.Ring] == 0:
		return verdict{false, v1alpha1.ReasonProgressing, "the keys are on their way to the ticket store"}
	case ready == 0:
		return verdict{false, v1alpha1.ReasonPodsNotReady, "no pod is ready"}
	case len(away) > 0:
		return verdict{false, v1alpha1.ReasonStoreUnreachable, strings.Join(away, "; ")}
	case len(behind) > 0:
		return verdict{false, v1alpha1.ReasonProgressing, strings.Join(behind, "; ")}
	}
	return verdict{true, v1alpha1.ReasonShared, fmt.Sprintf("clients resume on each of %d ready pods: they share %s", ready, describeRing(g))}
}

func describeRing(g *v1alpha1.QTLSGateway) string {
	if name := g.Spec.SessionResumption.Ring; name != "" {
		return fmt.Sprintf("the keys of ring %q", name)
	}
	return "the gateway's keys"
}

func statusOfTickets(s *dataplane.Status) *dataplane.TicketStatus {
	if s == nil {
		return nil
	}
	return s.Tickets
}

// oneLine joins the lines of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
