package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rollout"
)

// inputs are all that a decision rests on.
type inputs struct {
	Gateway *v1alpha1.QTLSGateway
	Objects resolve.Objects
	// Endpoints of the spec's backends, and of those of what is published.
	Endpoints dataplane.Endpoints
	// Model and Problems are what Objects resolve to.
	Model    model.Gateway
	Problems []resolve.Problem
	// Published is what the agents read now; nil when there is nothing yet.
	Published *published
	// Service of the gateway; nil before it exists.
	Service *corev1.Service
	Pods    []corev1.Pod
	// Observed is what the pods' agents say, in the order of Pods; Unknown
	// says why an agent's status is not known.
	Observed []rollout.Pod
	Unknown  map[string]error
	// Resumption of sessions: the store of the ticket keys.
	Resumption resumption
}

// published is the content of the gateway's ConfigMap.
type published struct {
	Assignment dataplane.Assignment
	Revisions  map[string]dataplane.Revision
}

// revisions are none where nothing is published.
func (p *published) revisions() map[string]dataplane.Revision {
	if p == nil {
		return nil
	}
	return p.Revisions
}

// secrets with the certificates of the revisions.
func (p *published) secrets() []string {
	var names []string
	for _, r := range p.revisions() {
		for _, c := range r.Certificates {
			names = append(names, c.Secret)
		}
	}
	return names
}

func (r *Reconciler) fetch(ctx context.Context, g *v1alpha1.QTLSGateway, now time.Time) (inputs, error) {
	in := inputs{Gateway: g, Unknown: map[string]error{}}
	refs := resolve.ReferencesOf(g)
	var err error
	o := &in.Objects
	if o.Policies, err = getAll[v1alpha1.QTLSPolicy](ctx, r.Client, "", refs.Policies); err != nil {
		return in, err
	}
	if o.Certificates, err = getAll[v1alpha1.PQCCertificate](ctx, r.Client, g.Namespace, refs.Certificates); err != nil {
		return in, err
	}
	if in.Published, err = r.published(ctx, g); err != nil {
		return in, err
	}
	groups := resolve.Groups(g, in.Published.revisions())
	services := resolve.ServicesOf(groups)
	r.backends.set(key(g), services) // before they are read: no change of theirs is missed
	if o.Services, err = getAll[corev1.Service](ctx, r.Client, g.Namespace, services); err != nil {
		return in, err
	}
	if o.HSMPools, err = getAll[v1alpha1.HSMPool](ctx, r.Client, g.Namespace, refs.HSMPools); err != nil {
		return in, err
	}
	secrets := refs.Secrets
	for _, c := range o.Certificates {
		secrets = append(secrets, resolve.SecretsOf(c)...)
	}
	secrets = append(secrets, in.Published.secrets()...)
	slices.Sort(secrets)
	secrets = slices.Compact(secrets)
	if o.Secrets, err = getAll[corev1.Secret](ctx, r.APIReader, g.Namespace, secrets); err != nil {
		return in, err
	}
	if o.ConfigMaps, err = getAll[corev1.ConfigMap](ctx, r.APIReader, g.Namespace, refs.ConfigMaps); err != nil {
		return in, err
	}
	if in.Endpoints, err = r.endpoints(ctx, g, groups, o.Services); err != nil {
		return in, err
	}
	if in.Resumption, err = r.ticketStore(ctx, g, in.Objects, now); err != nil {
		return in, err
	}
	own, err := getAll[corev1.Service](ctx, r.Client, g.Namespace, []string{resources.Name(g.Name)})
	if err != nil {
		return in, err
	}
	in.Service = own[resources.Name(g.Name)]
	return in, r.observe(ctx, g, &in)
}

// getAll reads the named objects; those that do not exist are left out, and so are
// names that nothing can have, which the API does not even let one ask for.
func getAll[T any, P interface {
	*T
	client.Object
}](ctx context.Context, reader client.Reader, namespace string, names []string) (map[string]*T, error) {
	out := map[string]*T{}
	for _, name := range names {
		if name == "" || len(content.IsPathSegmentName(name)) > 0 {
			continue
		}
		object := P(new(T))
		err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("%T %s: %w", object, name, err)
		default:
			out[name] = (*T)(object)
		}
	}
	return out, nil
}

func (r *Reconciler) endpoints(ctx context.Context, g *v1alpha1.QTLSGateway, groups []string, services map[string]*corev1.Service) (dataplane.Endpoints, error) {
	var all []discoveryv1.EndpointSlice
	for name := range services {
		var list discoveryv1.EndpointSliceList
		if err := r.List(ctx, &list, client.InNamespace(g.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: name}); err != nil {
			return nil, fmt.Errorf("EndpointSlices of Service %s: %w", name, err)
		}
		all = append(all, list.Items...)
	}
	return resolve.Endpoints(groups, services, all), nil
}

// published reads what the agents read. What does not parse, or is not what
// its name says, counts as not there: it is written anew.
func (r *Reconciler) published(ctx context.Context, g *v1alpha1.QTLSGateway) (*published, error) {
	cm := &corev1.ConfigMap{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: dataplane.ObjectName(g.Name)}, cm)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	p := &published{Revisions: map[string]dataplane.Revision{}}
	if json.Unmarshal([]byte(cm.Data[dataplane.KeyAssignment]), &p.Assignment) != nil {
		return nil, nil
	}
	names := []string{p.Assignment.Stable.Revision}
	if c := p.Assignment.Candidate; c != nil {
		names = append(names, c.Revision)
	}
	for _, name := range names {
		var revision dataplane.Revision
		if json.Unmarshal([]byte(cm.Data[dataplane.RevisionKey(name)]), &revision) != nil || revision.Name() != name {
			return nil, nil
		}
		p.Revisions[name] = revision
	}
	return p, nil
}

// observe lists the gateway's pods and asks what their agents said last.
func (r *Reconciler) observe(ctx context.Context, g *v1alpha1.QTLSGateway, in *inputs) error {
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(g.Namespace), client.MatchingLabels(resources.Selector(g.Name))); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		in.Pods = append(in.Pods, p)
	}
	slices.SortFunc(in.Pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range in.Pods {
		status, err := r.Observer.Status(key(g), p.UID)
		if err != nil {
			in.Unknown[p.Name] = err
		}
		in.Observed = append(in.Observed, rollout.Pod{Name: p.Name, Ready: podReady(&p), Pending: p.Status.Phase == corev1.PodPending && !podReady(&p),
			Terminating: p.DeletionTimestamp != nil, Status: status})
	}
	return nil
}

func podReady(p *corev1.Pod) bool {
	_, ready := resources.ReadySince(p)
	return ready
}
