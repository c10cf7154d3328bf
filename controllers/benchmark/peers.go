package benchmark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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
	if err := r.APIReader.List(ctx, &list, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(b.Name), componentLabel: peer.Component}); err != nil {
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

// observePeers of a gateway that runs with so many replicas. Of those that are not ready
// it is looked at their pods, which say why.
func (r *Reconciler) observePeers(ctx context.Context, b *v1alpha1.QTLSBenchmark, deployments map[string]*appsv1.Deployment, replicas int32, now time.Time) (map[string]plan.Peer, error) {
	all := map[string]plan.Peer{}
	for i, p := range b.Spec.Peers {
		// The operator may have been started anew, and allow others.
		if _, err := peer.ImageOf(i, p, r.Settings); err != nil {
			all[p.Name] = plan.Peer{Refused: fmt.Sprintf("%s: %v", v1alpha1.ReasonImageNotAllowed, err)}
			continue
		}
		d := deployments[p.Name]
		one := peerOf(p.Name, d, nil, replicas, now)
		if !one.Ready && asScaled(d, replicas) {
			pods, err := r.podsOfPeer(ctx, b, p.Name)
			if err != nil {
				return nil, err
			}
			one = peerOf(p.Name, d, pods, replicas, now)
		}
		all[p.Name] = one
	}
	return all, nil
}

// podsOfPeer that are not ending.
func (r *Reconciler) podsOfPeer(ctx context.Context, b *v1alpha1.QTLSBenchmark, name string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.APIReader.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels(peer.Selector(b.Name, name))); err != nil {
		return nil, fmt.Errorf("pods of peer %s: %w", name, err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// asScaled says whether a peer's Deployment has so many replicas.
func asScaled(d *appsv1.Deployment, replicas int32) bool {
	return d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas == replicas
}

// peerOf its Deployment, and of its pods where it is not ready.
func peerOf(name string, d *appsv1.Deployment, pods []corev1.Pod, replicas int32, now time.Time) plan.Peer {
	switch {
	case !asScaled(d, replicas):
		// It is made in this step, or left out where it cannot be.
		return plan.Peer{Since: now, Message: fmt.Sprintf("peer %q is not there yet", name)}
	case d.Status.ObservedGeneration != d.Generation:
		return plan.Peer{Since: d.CreationTimestamp.Time, Message: fmt.Sprintf("peer %q: Deployment %q is not observed yet", name, d.Name)}
	case d.Status.ReadyReplicas == replicas && d.Status.Replicas == replicas && d.Status.UpdatedReplicas == replicas:
		return plan.Peer{Ready: true}
	}
	p := plan.Peer{Since: now, // pods too many, which come and go
		Message: fmt.Sprintf("peer %q: %d of %d pods of Deployment %q are ready, %d are there", name, d.Status.ReadyReplicas, replicas, d.Name, d.Status.Replicas)}
	why := ""
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentAvailable && c.Status != corev1.ConditionTrue {
			p.Since = c.LastTransitionTime.Time
		}
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			p.Stuck, why = true, c.Message
		}
	}
	for i := range pods {
		words := lastWords(&pods[i])
		if words != "" {
			why = words
		}
		if cannotRun(&pods[i]) {
			p.Stuck = true
			break
		}
	}
	if why != "" {
		p.Message = conditions.Shorten(p.Message+": "+why, 1000)
	}
	return p
}

// cannotRun says whether a container of a pod that is not ready has ended, or waits for
// something else than that it is made.
func cannotRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		w := c.State.Waiting
		waits := w != nil && w.Reason != "" && w.Reason != "ContainerCreating"
		return !c.Ready && (waits || c.State.Terminated != nil || c.RestartCount > 0)
	})
}

// secretsOf the certificates that a peer serves, by the mode that it is measured in: the
// gateway's of those modes, and no others.
func (r *Reconciler) secretsOf(ctx context.Context, b *v1alpha1.QTLSBenchmark, gateway *v1alpha1.QTLSGateway, p v1alpha1.BenchmarkPeer) (map[string]string, error) {
	all := map[string]string{}
	for _, mode := range b.Spec.Modes {
		if !p.MeasuredIn(mode.Name) {
			continue
		}
		listener, err := generator.ListenerOf(b, mode, gateway)
		if err != nil {
			return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v", err)
		}
		served, err := r.certificatesOf(ctx, gateway.Namespace, listener)
		if err != nil {
			return nil, err
		}
		served = slices.DeleteFunc(served, func(c peer.Certificate) bool { return c.HSM })
		certificate, err := peer.Choose(mode, listener.Preference, served)
		if err != nil {
			return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v, in another benchmark; or give the listener a certificate that it accepts", err)
		}
		all[mode.Name] = certificate.Secret
	}
	return all, nil
}

// byPort are the Secrets of a peer by mode, each once: the index says its port.
func byPort(secrets map[string]string) []string {
	return slices.Compact(slices.Sorted(maps.Values(secrets)))
}

// serverOf spec.peers[index], beside a gateway with so many replicas.
func (r *Reconciler) serverOf(ctx context.Context, b *v1alpha1.QTLSBenchmark, gateway *v1alpha1.QTLSGateway, index int, replicas int32) (peer.Server, error) {
	p := b.Spec.Peers[index]
	image, err := peer.ImageOf(index, p, r.Settings)
	if err != nil {
		return peer.Server{}, conditions.Waiting(lookForReferences, v1alpha1.ReasonImageNotAllowed, "%v", err)
	}
	groups, err := peer.Groups(p, b.Spec.Modes)
	if err != nil {
		return peer.Server{}, immutable("%v", err)
	}
	secrets, err := r.secretsOf(ctx, b, gateway, p)
	if err != nil {
		return peer.Server{}, err
	}
	return peer.Server{Peer: p, Image: image, Secrets: byPort(secrets), Groups: groups, Replicas: replicas}, nil
}

// certificatesOf a listener.
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
		var pair *keypair.KeyPair
		if err == nil {
			pair, err = keypair.ParseStored(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		}
		if err != nil {
			return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonCertificateNotFound, "spec.peers: Secret %q, which listener %q of the gateway serves, has no certificate for the peers: %v", name, l.Name, err)
		}
		all = append(all, peer.Certificate{Secret: name, Algorithm: pair.Algorithm, HSM: keypair.PoolOf(pair.Key) != ""})
	}
	return all, nil
}

// applyPeers that are awaited and not there with so many replicas. Those that cannot be
// made, by a quota, a policy or the API server's rules, are left out: asking again does
// not help soon. What time may solve is waited for as long as for pods that do not run.
func (r *Reconciler) applyPeers(ctx context.Context, s state, replicas int32) (outcome, error) {
	o := outcome{recorded: records{}}
	if s.measured == nil {
		return o, nil
	}
	var waits error
	awaited := s.plan.Awaited(replicas, s.observed.Records)
	for i, p := range s.benchmark.Spec.Peers {
		if !slices.Contains(awaited, p.Name) || asScaled(s.peers[p.Name], replicas) {
			continue
		}
		err := r.applyPeer(ctx, s, i, replicas)
		problem, isProblem := conditions.AsProblem(err)
		var why string
		switch {
		case err == nil:
			continue
		case isProblem && problem.After > 0 && r.Clock.Now().Sub(s.observed.Gateway.Since) < r.Limits.Programmed:
			waits = err
			continue
		case isProblem:
			why = problem.Message
		case refused(err):
			why = fmt.Sprintf("%v; allow it in namespace %q", err, s.benchmark.Namespace)
		default:
			return o, err
		}
		message := conditions.Shorten(fmt.Sprintf("peer %q cannot be made with %d replicas, so it is left out with as many and more: %s", p.Name, replicas, why), 1500)
		kept, err := r.leaveOut(ctx, s, p.Name, s.plan.Without(p.Name, replicas, s.observed.Records), message)
		if err != nil {
			return o, err
		}
		maps.Copy(o.recorded, kept.recorded)
		o.leftOut, o.next = append(o.leftOut, message), soon
	}
	if len(o.leftOut) > 0 { // which is said first
		return o, nil
	}
	return o, waits
}

// applyPeer spec.peers[index].
func (r *Reconciler) applyPeer(ctx context.Context, s state, index int, replicas int32) error {
	server, err := r.serverOf(ctx, s.benchmark, s.measured, index, replicas)
	if err != nil {
		return err
	}
	// The Deployment last: where that is there, all is.
	if err := r.apply(ctx, s.benchmark, peer.Service(s.benchmark, server)); err != nil {
		return err
	}
	return r.apply(ctx, s.benchmark, peer.Deployment(s.benchmark, s.measured, server, r.Settings))
}

// leaveOut measurements of a peer, which goes: whatever it tries on and on would disturb
// the others.
func (r *Reconciler) leaveOut(ctx context.Context, s state, name string, without []plan.Measurement, message string) (outcome, error) {
	if err := r.deletePeers(ctx, s.benchmark, func(other string) bool { return other == name }); err != nil {
		return outcome{}, err
	}
	return r.keep(ctx, s.benchmark, without, record{Reason: v1alpha1.ReasonPeerNotReady, Message: message})
}

// deletePeers takes some away, whatever is there of them: those whose names are chosen.
func (r *Reconciler) deletePeers(ctx context.Context, b *v1alpha1.QTLSBenchmark, choose func(name string) bool) error {
	var errs []error
	for _, p := range b.Spec.Peers {
		if !choose(p.Name) {
			continue
		}
		meta := metav1.ObjectMeta{Namespace: b.Namespace, Name: peer.Name(b.Name, p.Name)}
		for _, o := range []client.Object{&corev1.Service{ObjectMeta: meta}, &appsv1.Deployment{ObjectMeta: meta}} {
			err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(o), o)
			if err == nil && metav1.IsControlledBy(o, b) {
				err = r.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: ptr.To(o.GetUID())})
			}
			if client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("peer %s: %w", p.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// retarget a load at a peer.
func (r *Reconciler) retarget(ctx context.Context, s state, m plan.Measurement, l *load.Load) error {
	b := s.benchmark
	i := slices.IndexFunc(b.Spec.Peers, func(p v1alpha1.BenchmarkPeer) bool { return p.Name == m.Peer })
	secrets, err := r.secretsOf(ctx, b, s.measured, b.Spec.Peers[i])
	if err != nil {
		return err
	}
	l.Client.Host = fmt.Sprintf("%s.%s.svc", peer.Name(b.Name, m.Peer), b.Namespace)
	l.Client.Port = int(peer.Port(slices.Index(byPort(secrets), secrets[m.Mode])))
	return nil
}

// peerImages are those of the peers' pods, with their digests.
func (r *Reconciler) peerImages(ctx context.Context, b *v1alpha1.QTLSBenchmark) ([]report.Image, error) {
	var images []report.Image
	for _, p := range b.Spec.Peers {
		pods, err := r.podsOfPeer(ctx, b, p.Name)
		if err != nil {
			return nil, err
		}
		for _, image := range imagesOf(pods) {
			if image.Name = "peer " + p.Name; !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images, nil
}

// comparison with a peer.
type comparison struct {
	v1alpha1.BenchmarkComparison
	// notReady: it has no result, for the peer did not run.
	notReady bool
}

// comparisons of a report, for the status.
func comparisons(s state, r report.Report) []comparison {
	b := s.benchmark
	var all []comparison
	for _, p := range b.Spec.Peers {
		for _, mode := range b.Spec.Modes {
			for _, point := range r.Points {
				if point.Mode != plan.Subject(mode.Name, p.Name) {
					continue
				}
				one := comparison{BenchmarkComparison: v1alpha1.BenchmarkComparison{Peer: p.Name, Mode: mode.Name, Replicas: int32(point.Replicas)}}
				i := slices.IndexFunc(r.Peers, func(x report.Peer) bool {
					return x.Mode == mode.Name && x.Peer == p.Name && x.Replicas == point.Replicas
				})
				if i >= 0 {
					one.Ratio = estimate(r.Peers[i].Ratio, 3)
				} else if c := point.Capacity; c != nil && !c.Valid {
					var reasons because
					reasons.add(c.Repetitions)
					one.InvalidBecause = reasons.list(100)
					one.notReady = slices.ContainsFunc(s.plan.Measurements, func(m plan.Measurement) bool {
						return m.Subject() == point.Mode && m.Replicas == one.Replicas && m.Phase == plan.Capacity && s.records[m.Name()].Reason == v1alpha1.ReasonPeerNotReady
					})
				} else {
					one.InvalidBecause = []string{"no repetition has a valid capacity of both"}
				}
				all = append(all, one)
			}
		}
	}
	return all
}
