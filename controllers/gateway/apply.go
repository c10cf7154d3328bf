package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/owned"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
)

// apply writes the gateway's objects by server-side apply: what an agent needs
// before what names it, and the others whatever becomes of these: a Service that the
// API server refuses keeps no pods from being scaled.
func (r *Reconciler) apply(ctx context.Context, g *v1alpha1.QTLSGateway, in inputs, p plan, now time.Time) error {
	agentSecret, err := r.agentSecret(ctx, g, now)
	if err != nil {
		return err
	}
	secrets := p.Secrets()
	if resolve.Resumes(g) {
		secrets = append(secrets, dataplane.TicketsSecretName(g.Name))
	}
	agents := []client.Object{resources.ServiceAccount(g), resources.Role(g, secrets), resources.RoleBinding(g)}
	if agentSecret != nil {
		agents = append(agents, agentSecret)
	}
	if p.Published() {
		data, err := p.data(in.Endpoints)
		if err != nil {
			return err
		}
		agents = append(agents, resources.DataPlane(g, data))
	}
	var failed error
	for _, o := range agents {
		if err := r.applyObject(ctx, g, o); err != nil {
			failed = errors.Join(failed, err)
			break
		}
	}
	others := []client.Object{resources.Service(g, p.ports()), resources.PodDisruptionBudget(g)}
	if deployment, err := r.deployment(ctx, g, in, p); err != nil {
		failed = errors.Join(failed, err)
	} else {
		others = append(others, deployment)
	}
	for _, o := range others {
		if err := r.applyObject(ctx, g, o); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// deployment of the gateway's pods, with the libraries of its HSMPool, or with
// those that they have where they keep them.
func (r *Reconciler) deployment(ctx context.Context, g *v1alpha1.QTLSGateway, in inputs, p plan) (*appsv1.Deployment, error) {
	d := resources.Deployment(g, r.Settings)
	pool, libraries := librariesOf(g, in)
	if p.keepsLibraries(libraries, in.Observed) {
		former := &appsv1.Deployment{}
		err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(d), former)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("Deployment %s: %w", d.Name, err)
		}
		if resources.HasLibraries(former) {
			return resources.KeepLibraries(d, former), nil
		}
	}
	return resources.WithLibraries(d, pool, libraries, r.Settings), nil
}

// librariesOf the gateway's HSMPool, and its name; none where there is no such
// pool or its libraries do not get along, which resolve has told.
func librariesOf(g *v1alpha1.QTLSGateway, in inputs) (pool string, libraries []hsmpool.Library) {
	if g.Spec.HSMRef == nil {
		return "", nil
	}
	p := in.Objects.HSMPools[g.Spec.HSMRef.Name]
	if p == nil {
		return "", nil
	}
	libraries, err := hsmpool.InPods(p)
	if err != nil {
		return "", nil
	}
	return p.Name, libraries
}

// applyTickets writes what session resumption needs, and takes away what an
// earlier spec needed. The gateway serves without it. again says that something of
// the latter is to be looked at again soon.
func (r *Reconciler) applyTickets(ctx context.Context, g *v1alpha1.QTLSGateway, in inputs, p plan) (again bool, err error) {
	objects, err := r.ticketObjects(ctx, g, p.rings(), in.Resumption)
	if err != nil {
		return false, err
	}
	for _, o := range objects {
		if err := r.applyObject(ctx, g, o); err != nil {
			return false, notInstalled(o, err)
		}
	}
	for _, o := range unwanted(g) {
		if err := r.remove(ctx, g, o); err != nil {
			return false, fmt.Errorf("%T %s: %w", o, o.GetName(), err)
		}
	}
	if again, err = r.leaveRings(ctx, g, remembered(in, p)); err != nil {
		return again, err
	}
	return again, r.removeRedisOperator(ctx, g)
}

// readerOf an object's metadata. Kinds that somebody else installs, and may take
// away, are not kept in memory.
func (r *Reconciler) readerOf(o client.Object) client.Reader {
	if _, foreign := o.(*unstructured.Unstructured); foreign {
		return r.APIReader
	}
	return r.Client
}

// applyObject applies one object, unless one of its name is there already that
// this gateway does not own.
func (r *Reconciler) applyObject(ctx context.Context, g *v1alpha1.QTLSGateway, o client.Object) error {
	_, err := owned.Writer{Client: r.Client, Cached: r.readerOf(o), Live: r.APIReader, Applied: &r.applied}.Apply(ctx, g, "gateway", o)
	return err
}

// agentSecret is the agents' certificate when it has to be made or renewed.
func (r *Reconciler) agentSecret(ctx context.Context, g *v1alpha1.QTLSGateway, now time.Time) (*corev1.Secret, error) {
	authority, err := r.Authority.Get(ctx)
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: resources.AgentSecretName(g.Name)}, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("Secret %s: %w", resources.AgentSecretName(g.Name), err)
	}
	data, err := authority.Keep(secret.Data, mtls.AgentName(g.Namespace, g.Name), x509.ExtKeyUsageServerAuth, now)
	if err != nil || maps.EqualFunc(data, secret.Data, bytes.Equal) {
		return nil, err
	}
	return resources.AgentSecret(g, data), nil
}
