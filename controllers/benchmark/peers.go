package benchmark

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/resolve"
)

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=qtls.dev,resources=pqccertificates,verbs=get;list;watch

// peerDeployments of a benchmark that are there, by the peer's name.
func (r *Reconciler) peerDeployments(ctx context.Context, b *v1alpha1.QTLSBenchmark) (map[string]*appsv1.Deployment, error) {
	if len(b.Spec.Peers) == 0 {
		return nil, nil
	}
	var list appsv1.DeploymentList
	if err := r.List(ctx, &list, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(b.Name), componentLabel: peer.Component}); err != nil {
		return nil, fmt.Errorf("Deployments of QTLSBenchmark %s: %w", b.Name, err)
	}
	all := map[string]*appsv1.Deployment{}
	for i := range list.Items {
		if d := &list.Items[i]; metav1.IsControlledBy(d, b) && d.DeletionTimestamp == nil {
			all[d.Labels[v1alpha1.LabelPeer]] = d
		}
	}
	return all, nil
}

// withPeers is what is observed of a gateway whose peers are to be there too, with as
// many replicas.
func withPeers(g plan.Gateway, b *v1alpha1.QTLSBenchmark, deployments map[string]*appsv1.Deployment, now time.Time) plan.Gateway {
	if !g.Programmed {
		return g
	}
	for _, p := range b.Spec.Peers {
		if ready, message, since := peerReady(p, deployments[p.Name], g.Replicas, now); !ready {
			g.Programmed, g.Message, g.Unprogrammed = false, message, since
			return g
		}
	}
	return g
}

// asScaled says whether a peer's Deployment has so many replicas.
func asScaled(d *appsv1.Deployment, replicas int32) bool {
	return d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas == replicas
}

// peerReady says whether all pods of a peer are; where they are not, what is missing
// and since when. That is zero where it is since it was scaled.
func peerReady(p v1alpha1.BenchmarkPeer, d *appsv1.Deployment, replicas int32, now time.Time) (ok bool, message string, since time.Time) {
	switch {
	case !asScaled(d, replicas):
		return false, fmt.Sprintf("peer %q is not there yet", p.Name), time.Time{}
	case d.Status.ObservedGeneration != d.Generation:
		return false, fmt.Sprintf("peer %q: Deployment %q is not observed yet", p.Name, d.Name), time.Time{}
	case d.Status.ReadyReplicas == replicas && d.Status.Replicas == replicas && d.Status.UpdatedReplicas == replicas:
		return true, "", time.Time{}
	}
	since = now // pods too many, which come and go
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentAvailable && c.Status != corev1.ConditionTrue {
			since = c.LastTransitionTime.Time
		}
	}
	return false, fmt.Sprintf("peer %q: %d of %d pods of Deployment %q are ready, %d are there; its pods' logs and events say why", p.Name, d.Status.ReadyReplicas, replicas, d.Name, d.Status.Replicas), since
}

// comparison is all that peers are made of.
type comparison struct {
	// secrets of all certificates: each has the port of its index.
	secrets []string
	// ports by mode.
	ports   map[string]int32
	servers []peer.Server
}

// comparisonOf a benchmark with a gateway, which its peers get the certificates of.
func (r *Reconciler) comparisonOf(ctx context.Context, b *v1alpha1.QTLSBenchmark, gateway *v1alpha1.QTLSGateway, replicas int32) (comparison, error) {
	c := comparison{ports: map[string]int32{}}
	invalid := func(err error) error {
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v; a benchmark is immutable: create another one", err)
	}
	chosen := map[string]string{} // Secrets by mode
	for _, mode := range b.Spec.Modes {
		if !slices.ContainsFunc(b.Spec.Peers, func(p v1alpha1.BenchmarkPeer) bool { return p.MeasuredIn(mode.Name) }) {
			continue
		}
		listener, err := generator.ListenerOf(b, mode, gateway)
		if err != nil {
			return c, conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v", err)
		}
		served, err := r.certificatesOf(ctx, gateway.Namespace, listener)
		if err != nil {
			return c, err
		}
		certificate, err := peer.Choose(mode, served)
		if err != nil {
			return c, invalid(err)
		}
		chosen[mode.Name] = certificate.Secret
		c.secrets = append(c.secrets, certificate.Secret)
	}
	slices.Sort(c.secrets)
	c.secrets = slices.Compact(c.secrets)
	for mode, secret := range chosen {
		c.ports[mode] = peer.Port(slices.Index(c.secrets, secret))
	}
	for _, p := range b.Spec.Peers {
		groups, err := peer.Groups(p, b.Spec.Modes)
		if err != nil {
			return c, invalid(err)
		}
		c.servers = append(c.servers, peer.Server{Peer: p, Image: cmp.Or(p.Image, r.Settings.GatewayImage), Secrets: c.secrets, Groups: groups, Replicas: replicas})
	}
	return c, nil
}

// certificatesOf a listener whose keys a peer can have: those in HSMs it cannot.
func (r *Reconciler) certificatesOf(ctx context.Context, namespace string, l *v1alpha1.Listener) ([]peer.Certificate, error) {
	var secrets []string
	for _, ref := range l.CertificateRefs {
		if ref.Kind == v1alpha1.CertificateKindSecret {
			secrets = append(secrets, ref.Name)
			continue
		}
		c := &v1alpha1.PQCCertificate{}
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, c)
		if apierrors.IsNotFound(err) {
			return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonCertificateNotFound, "spec.peers: there is no PQCCertificate %q, which listener %q of the gateway names", ref.Name, l.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("PQCCertificate %s: %w", ref.Name, err)
		}
		secrets = append(secrets, resolve.SecretsOf(c)...)
	}
	var all []peer.Certificate
	for _, name := range secrets {
		s := &corev1.Secret{}
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("Secret %s: %w", name, err)
		}
		if err == nil && keypair.IsReference(s.Data[corev1.TLSPrivateKeyKey]) {
			continue
		}
		var pair *keypair.KeyPair
		if err == nil {
			pair, err = keypair.Parse(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		}
		if err != nil {
			return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonCertificateNotFound, "spec.peers: Secret %q, which listener %q of the gateway serves, has no certificate for the peers: %v", name, l.Name, err)
		}
		all = append(all, peer.Certificate{Secret: name, Algorithm: pair.Algorithm})
	}
	return all, nil
}

// applyPeers that are not there with so many replicas.
func (r *Reconciler) applyPeers(ctx context.Context, s state, replicas int32) error {
	b := s.benchmark
	if s.measured == nil || !slices.ContainsFunc(b.Spec.Peers, func(p v1alpha1.BenchmarkPeer) bool { return !asScaled(s.peers[p.Name], replicas) }) {
		return nil
	}
	c, err := r.comparisonOf(ctx, b, s.measured, replicas)
	if err != nil {
		return err
	}
	for _, server := range c.servers {
		// The Deployment last: where that is there, all is.
		for _, o := range []client.Object{peer.ConfigMap(b, server), peer.Service(b, server), peer.Deployment(b, s.measured, server, r.Settings)} {
			err := r.apply(ctx, b, o)
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "spec.peers: peer %q: %v", server.Peer.Name, err)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// deletePeers takes them away; what else belongs to them goes with the benchmark.
func (r *Reconciler) deletePeers(ctx context.Context, s state) error {
	for _, d := range s.peers {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
		for _, o := range []client.Object{service, d} { // the Deployment last, by which they are known
			if err := r.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("peer %s: %w", d.Name, err)
			}
		}
	}
	return nil
}

// retarget a load at a peer.
func (r *Reconciler) retarget(ctx context.Context, s state, m plan.Measurement, l *load.Load) error {
	c, err := r.comparisonOf(ctx, s.benchmark, s.measured, m.Replicas)
	if err != nil {
		return err
	}
	l.Client.Host, l.Client.Port = fmt.Sprintf("%s.%s.svc", peer.Name(s.benchmark.Name, m.Peer), s.benchmark.Namespace), int(c.ports[m.Mode])
	return nil
}

// peerImages are those of the peers' pods, with their digests.
func (r *Reconciler) peerImages(ctx context.Context, b *v1alpha1.QTLSBenchmark) ([]report.Image, error) {
	var images []report.Image
	for _, p := range b.Spec.Peers {
		var pods corev1.PodList
		if err := r.APIReader.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels(peer.Selector(b.Name, p.Name))); err != nil {
			return nil, fmt.Errorf("pods of peer %s: %w", p.Name, err)
		}
		for _, image := range gatewayImages(pods.Items) {
			if image.Name = "peer " + p.Name; !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images, nil
}

// comparisons of a report, for the status.
func comparisons(b *v1alpha1.QTLSBenchmark, r report.Report) []v1alpha1.BenchmarkComparison {
	var all []v1alpha1.BenchmarkComparison
	for _, p := range b.Spec.Peers {
		for _, mode := range b.Spec.Modes {
			for _, point := range r.Points {
				if point.Mode != plan.Subject(mode.Name, p.Name) {
					continue
				}
				one := v1alpha1.BenchmarkComparison{Peer: p.Name, Mode: mode.Name, Replicas: int32(point.Replicas)}
				i := slices.IndexFunc(r.Peers, func(x report.Peer) bool {
					return x.Mode == mode.Name && x.Peer == p.Name && x.Replicas == point.Replicas
				})
				if i >= 0 {
					one.Ratio = estimate(r.Peers[i].Ratio, 3)
				} else if c := point.Capacity; c != nil && !c.Valid {
					var reasons because
					reasons.add(c.Repetitions)
					one.InvalidBecause = reasons.list()
				} else {
					one.InvalidBecause = []string{"no repetition has a valid capacity of both"}
				}
				all = append(all, one)
			}
		}
	}
	return all
}
