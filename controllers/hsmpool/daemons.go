package hsmpool

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/agentpki"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/owned"
	"qtls.dev/qtls/internal/resources"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=hsmpools/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=secrets;configmaps;services;serviceaccounts;persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete

// lookAgain is how often what is applied is looked at without a change of
// anything: certificates are renewed long before their end.
const lookAgain = time.Hour

// kinds of objects that a pool may own, in the order in which those that are
// not wanted any more are deleted.
var kinds = []client.Object{
	&appsv1.StatefulSet{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}, &corev1.Service{}, &corev1.ConfigMap{},
	&corev1.ServiceAccount{}, &corev1.PersistentVolumeClaim{}, &corev1.Secret{},
}

// object that a pool owns.
type object struct {
	kind schema.GroupVersionKind
	name string
}

func keyOf(o client.Object) object {
	return object{o.GetObjectKind().GroupVersionKind(), o.GetName()}
}

// provided is what was last written for a pool.
type provided struct {
	generation int64
	at         time.Time
	// versions of the objects that are wanted.
	versions map[object]string
	faults
	// asked is how the members are, once a pod is to be replaced.
	asked []hsmpool.Observation
}

// leave objects as they are.
func (p *provided) leave(objects ...client.Object) {
	for _, o := range objects {
		p.versions[keyOf(o)] = ""
	}
}

// faults are why daemons are not as they are wanted.
type faults struct {
	// problems are by member; those of all under the empty name.
	problems map[string]*conditions.Problem
	// failures are those of them that are tried again soon.
	failures []error
	// incomplete says that objects may be missing.
	incomplete bool
}

// note an error, if it is one, with the objects of a member.
func (f *faults) note(member string, err error) {
	if err == nil {
		return
	}
	problem, ok := conditions.AsProblem(err)
	if !ok {
		problem = &conditions.Problem{Reason: v1alpha1.ReasonNotApplied, Message: err.Error(), After: Interval}
		f.failures = append(f.failures, err)
	}
	f.problems[member], f.incomplete = problem, true
}

// managed are the members whose daemon the operator runs.
func managed(pool *v1alpha1.HSMPool) []v1alpha1.HSMMember {
	var members []v1alpha1.HSMMember
	for _, m := range pool.Spec.Members {
		if m.Remote == nil {
			members = append(members, m)
		}
	}
	return members
}

// provide the daemons of a pool: write what is wanted, unless it is there just
// as it was written last, and delete what is not wanted any more. What cannot
// be written is a member's problem; so is what the user has to give it and did
// not, which is looked at each time. The error is what to try again soon.
func (r *Reconciler) provide(ctx context.Context, pool *v1alpha1.HSMPool) (map[string]*conditions.Problem, error) {
	key, now := client.ObjectKeyFromObject(pool), r.Clock.Now()
	r.mu.Lock()
	last := r.daemons[key]
	r.mu.Unlock()
	found := faults{problems: map[string]*conditions.Problem{}}
	if !r.isProvided(ctx, pool, last, now) {
		next := &provided{generation: pool.Generation, at: now, versions: map[object]string{}, faults: faults{problems: map[string]*conditions.Problem{}}}
		r.write(ctx, pool, next, now)
		r.mu.Lock()
		if r.daemons == nil {
			r.daemons = map[client.ObjectKey]*provided{}
		}
		r.daemons[key] = next
		r.mu.Unlock()
		found.problems, found.failures = maps.Clone(next.problems), next.failures
	}
	r.noteNeeds(ctx, pool, &found)
	return found.problems, errors.Join(found.failures...)
}

// isProvided says whether there is nothing to write.
func (r *Reconciler) isProvided(ctx context.Context, pool *v1alpha1.HSMPool, last *provided, now time.Time) bool {
	return last != nil && last.generation == pool.Generation && now.Sub(last.at) < lookAgain && len(last.problems) == 0 && r.unchanged(ctx, pool, last)
}

// noteNeeds of members without a problem: what they wait for that the user has to
// give them.
func (r *Reconciler) noteNeeds(ctx context.Context, pool *v1alpha1.HSMPool, f *faults) {
	for _, m := range managed(pool) {
		if l, ok := hsmpool.LibraryOf(m); ok && f.problems[m.Name] == nil {
			f.note(m.Name, r.needed(ctx, pool, l))
		}
	}
}

// unchanged says whether the objects are as they were written.
func (r *Reconciler) unchanged(ctx context.Context, pool *v1alpha1.HSMPool, last *provided) bool {
	for o, version := range last.versions {
		existing := &metav1.PartialObjectMetadata{}
		existing.SetGroupVersionKind(o.kind)
		if err := r.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: o.name}, existing); err != nil || existing.ResourceVersion != version {
			return false
		}
	}
	return true
}

// write all objects of a pool, and delete what is not wanted any more: what is
// missing because it could not be written is not what nobody wants.
func (r *Reconciler) write(ctx context.Context, pool *v1alpha1.HSMPool, p *provided, now time.Time) {
	if members := managed(pool); len(members) > 0 {
		authority, err := r.writeCommon(ctx, pool, p, now)
		if err != nil {
			p.note("", err)
			return
		}
		for _, m := range members {
			p.note(m.Name, r.writeMember(ctx, pool, m, authority, p, now))
		}
	}
	if !p.incomplete {
		p.note("", r.prune(ctx, pool, p))
	}
}

// writeCommon writes what all the members need, and returns the authority of
// their certificates.
func (r *Reconciler) writeCommon(ctx context.Context, pool *v1alpha1.HSMPool, p *provided, now time.Time) (*agentpki.Succession, error) {
	authority, err := r.authority(ctx, pool, p, now)
	if err != nil {
		return nil, err
	}
	common := []client.Object{resources.HSMPodDisruptionBudget(pool)}
	for name, client := range map[string]string{
		hsmpool.OperatorSecretName(pool.Name): resources.HsmdOperator,
		hsmpool.GatewaysSecretName(pool.Name): resources.HsmdGateways,
	} {
		data, err := r.certificate(ctx, pool, authority, name, client, x509.ExtKeyUsageClientAuth, now)
		if err != nil {
			return nil, err
		}
		common = append(common, resources.HSMSecret(pool, name, data))
	}
	return authority, r.apply(ctx, pool, p, common...)
}

func (r *Reconciler) writeMember(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, authority *agentpki.Succession, p *provided, now time.Time) error {
	var pins types.UID
	if m.SoftToken != nil {
		var err error
		if pins, err = r.pins(ctx, pool, m, p); err != nil {
			return err
		}
	}
	data, err := r.certificate(ctx, pool, authority, hsmpool.DaemonName(pool.Name, m.Name), hsmpool.DaemonHost(pool, m.Name), x509.ExtKeyUsageServerAuth, now)
	if err != nil {
		return err
	}
	if err := r.apply(ctx, pool, p, append([]client.Object{resources.HsmdSecret(pool, m.Name, data)}, resources.Hsmd(pool, m, r.Settings)...)...); err != nil {
		return err
	}
	return r.run(ctx, pool, m, pins, p)
}

// needed says what a library waits for that the user has to give it: the PIN,
// and its files.
func (r *Reconciler) needed(ctx context.Context, pool *v1alpha1.HSMPool, l hsmpool.Library) error {
	pin, field := &corev1.Secret{}, l.Field+".pinSecretRef"
	there, err := isThere(ctx, r.APIReader, pool, pin, l.Token.PINSecretRef.Name)
	switch {
	case err != nil:
		return err
	case !there:
		return conditions.Waiting(Interval, v1alpha1.ReasonPINMissing, "%s: Secret %q is not there in namespace %q; create it with the token's PIN under the key %q",
			field, l.Token.PINSecretRef.Name, pool.Namespace, resources.KeyUserPIN)
	case len(pin.Data[resources.KeyUserPIN]) == 0:
		return conditions.Waiting(Interval, v1alpha1.ReasonPINMissing, "%s: Secret %q in namespace %q has no key %q; put the token's PIN there",
			field, pin.Name, pool.Namespace, resources.KeyUserPIN)
	}
	for _, f := range l.Module.Files {
		var reader client.Reader = r.Client
		var name, kind, reason string
		switch {
		case f.SecretRef != nil:
			name, kind, reason = f.SecretRef.Name, "Secret", v1alpha1.ReasonSecretNotFound
		case f.ConfigMapRef != nil:
			name, kind, reason = f.ConfigMapRef.Name, "ConfigMap", v1alpha1.ReasonConfigMapNotFound
		default:
			name, kind, reason = f.PersistentVolumeClaimRef.Name, "PersistentVolumeClaim", v1alpha1.ReasonVolumeClaimNotFound
			reader = r.APIReader // the cache has those of pools alone
		}
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		if there, err := isThere(ctx, reader, pool, o, name); err != nil {
			return err
		} else if !there {
			return conditions.Waiting(Interval, reason, "%s, files of folder %s: %s %q is not there in namespace %q; create it, or name another",
				l.Field, f.Folder, kind, name, pool.Namespace)
		}
	}
	return nil
}

// isThere reads an object of the pool's namespace, if it is there. One of a name
// that nothing can have, which an earlier release let through, is not, and the API
// does not even let one ask for it.
func isThere(ctx context.Context, reader client.Reader, pool *v1alpha1.HSMPool, o client.Object, name string) (bool, error) {
	if len(content.IsPathSegmentName(name)) > 0 {
		return false, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("%T %s/%s: %w", o, pool.Namespace, name, err)
	}
	return err == nil, nil
}

// apply objects, but for those that are as they were applied last.
func (r *Reconciler) apply(ctx context.Context, pool *v1alpha1.HSMPool, p *provided, objects ...client.Object) error {
	writer := owned.Writer{Client: r.Client, Cached: r.Client, Live: r.APIReader, Applied: &r.applied}
	for _, o := range objects {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
			existing, err := r.claimed(ctx, pool, claim)
			if err != nil {
				return err
			}
			if existing != nil {
				p.versions[keyOf(o)] = existing.ResourceVersion
				continue
			}
		}
		version, err := writer.Apply(ctx, pool, "HSMPool", o)
		if err != nil {
			return err
		}
		p.versions[keyOf(o)] = version
	}
	return nil
}

// claimed is the claim of a token's volume that the pool has already; nil if there
// is none. It stays as it was made: of members that share it, another may be the
// first now, and describe it otherwise. One that was restored from a backup that
// knew no owner has the pool's label still, and is the pool's again. Any other is
// somebody else's: the cache, which has those of pools alone, does not show it.
// One that is being deleted is a problem: pods hold it, and with it the new one.
func (r *Reconciler) claimed(ctx context.Context, pool *v1alpha1.HSMPool, wanted *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	existing := &corev1.PersistentVolumeClaim{}
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), existing)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s: %w", wanted.Namespace, wanted.Name, err)
	}
	restored := metav1.GetControllerOf(existing) == nil && existing.Labels[v1alpha1.LabelHSMPool] == pool.Name
	switch {
	case !restored && !metav1.IsControlledBy(existing, pool):
		return nil, conditions.Waiting(Interval, v1alpha1.ReasonNotApplied,
			"PersistentVolumeClaim %q exists in namespace %q and is not this HSMPool's; delete it, or rename the HSMPool", wanted.Name, wanted.Namespace)
	case existing.DeletionTimestamp != nil:
		return nil, conditions.Waiting(Interval, v1alpha1.ReasonNotApplied,
			"PersistentVolumeClaim %q in namespace %q is being deleted; it goes when the pods of StatefulSet %s are deleted, and another takes its place", wanted.Name, wanted.Namespace, usersOf(pool, wanted.Name))
	case restored:
		return existing, r.own(ctx, existing, wanted)
	}
	return existing, nil
}

// usersOf a token's volume: the StatefulSets whose pods mount it.
func usersOf(pool *v1alpha1.HSMPool, claim string) string {
	var names []string
	for _, m := range pool.Spec.Members {
		if m.SoftToken != nil && hsmpool.SoftTokenName(pool.Name, m) == claim {
			names = append(names, fmt.Sprintf("%q", hsmpool.DaemonName(pool.Name, m.Name)))
		}
	}
	return strings.Join(names, ", ")
}

// read a Secret of the pool's namespace; nil if there is none.
func (r *Reconciler) read(ctx context.Context, pool *v1alpha1.HSMPool, name string) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("Secret %s/%s: %w", pool.Namespace, name, err)
	}
	return s, nil
}

// secret of the pool's own; nil if there is none.
func (r *Reconciler) secret(ctx context.Context, pool *v1alpha1.HSMPool, name string) (*corev1.Secret, error) {
	s, err := r.read(ctx, pool, name)
	if err != nil || s == nil {
		return nil, err
	}
	return s, isOf(pool, s)
}

// isOf is the problem that a Secret is not the pool's.
func isOf(pool *v1alpha1.HSMPool, s *corev1.Secret) error {
	if metav1.IsControlledBy(s, pool) {
		return nil
	}
	return conditions.Waiting(Interval, v1alpha1.ReasonNotApplied,
		"Secret %q exists in namespace %q and is not this HSMPool's; delete or rename it, or rename the HSMPool", s.Name, s.Namespace)
}

// authority of the certificates of a pool's daemons and their clients. It is
// the pool's own, for clients of one pool are nobody to another.
func (r *Reconciler) authority(ctx context.Context, pool *v1alpha1.HSMPool, p *provided, now time.Time) (*agentpki.Succession, error) {
	name := hsmpool.AuthoritySecretName(pool.Name)
	existing, err := r.secret(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	var data map[string][]byte
	if existing != nil {
		data = existing.Data
	}
	s, changed, reason, err := agentpki.Succeed(data, now)
	if err != nil {
		return nil, err
	}
	if reason != nil {
		ctrl.LoggerFrom(ctx).Error(reason, "the authority of an HSMPool does not parse; a new one takes its place", "secret", name)
	}
	if !changed {
		p.versions[object{corev1.SchemeGroupVersion.WithKind("Secret"), name}] = existing.ResourceVersion
		return s, nil
	}
	if data, err = s.Data(); err != nil {
		return nil, err
	}
	return s, r.apply(ctx, pool, p, resources.HSMSecret(pool, name, data))
}

// certificate is the data of a Secret with a certificate: those there are,
// unless they have to be renewed.
func (r *Reconciler) certificate(ctx context.Context, pool *v1alpha1.HSMPool, a *agentpki.Succession, secret, name string, usage x509.ExtKeyUsage, now time.Time) (map[string][]byte, error) {
	existing, err := r.secret(ctx, pool, secret)
	if err != nil {
		return nil, err
	}
	var data map[string][]byte
	if existing != nil {
		data = existing.Data
	}
	return a.Keep(data, name, usage, now)
}

// pins makes the PINs of a token in software, once: a token keeps those that it
// was made with. Those that were restored from a backup that knew no owner are the
// pool's again. It returns the UID of their Secret.
func (r *Reconciler) pins(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, p *provided) (types.UID, error) {
	wanted := resources.PINSecret(pool, m, nil)
	secret, err := r.read(ctx, pool, wanted.Name)
	switch {
	case err != nil:
	case secret == nil:
		secret, err = r.makePINs(ctx, pool, m)
	case metav1.GetControllerOf(secret) == nil && len(secret.Data[resources.KeyUserPIN]) > 0 && len(secret.Data[resources.KeyOfficerPIN]) > 0:
		err = r.own(ctx, secret, wanted)
	default:
		err = isOf(pool, secret)
	}
	if err != nil {
		return "", err
	}
	p.versions[keyOf(wanted)] = secret.ResourceVersion
	return secret.UID, nil
}

// makePINs of a token that is not there: others open none that is.
func (r *Reconciler) makePINs(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) (*corev1.Secret, error) {
	secret := resources.PINSecret(pool, m, map[string][]byte{
		resources.KeyUserPIN: []byte(rand.Text()), resources.KeyOfficerPIN: []byte(rand.Text()),
	})
	if claim := resources.SoftTokenClaim(pool, m); claim != nil {
		existing, err := r.claimed(ctx, pool, claim)
		if err != nil {
			return nil, err
		}
		if existing != nil {
			return nil, conditions.Waiting(Interval, v1alpha1.ReasonPINMissing,
				"Secret %q with the PINs of the token is gone from namespace %q, and its volume is not; restore the Secret, or give the token and its keys up by deleting PersistentVolumeClaim %q",
				secret.Name, pool.Namespace, claim.Name)
		}
	}
	if err := r.Create(ctx, secret, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return nil, fmt.Errorf("Secret %s: %w", secret.Name, err)
	}
	return secret, nil
}

// own makes what is there, and has no owner, the pool's, with the owner and the
// labels that are wanted.
func (r *Reconciler) own(ctx context.Context, o, wanted client.Object) error {
	before := o.DeepCopyObject().(client.Object)
	o.SetOwnerReferences(append(o.GetOwnerReferences(), wanted.GetOwnerReferences()...))
	labels := map[string]string{}
	maps.Copy(labels, o.GetLabels())
	maps.Copy(labels, wanted.GetLabels())
	o.SetLabels(labels)
	if err := r.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("%s %s/%s: %w", wanted.GetObjectKind().GroupVersionKind().Kind, wanted.GetNamespace(), wanted.GetName(), err)
	}
	return nil
}

// prune deletes what the pool owns and does not want any more.
func (r *Reconciler) prune(ctx context.Context, pool *v1alpha1.HSMPool, p *provided) error {
	var errs []error
	for _, k := range kinds {
		kind, err := r.GroupVersionKindFor(k)
		if err != nil {
			return err
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := r.List(ctx, list, client.InNamespace(pool.Namespace), client.MatchingLabels{v1alpha1.LabelHSMPool: pool.Name}); err != nil {
			return fmt.Errorf("%s: %w", kind.Kind, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			o.SetGroupVersionKind(kind)
			if _, wanted := p.versions[object{kind, o.Name}]; wanted || !metav1.IsControlledBy(o, pool) || o.DeletionTimestamp != nil {
				continue
			}
			ctrl.LoggerFrom(ctx).Info("deleting what no member needs", "kind", kind.Kind, "name", o.Name)
			if err := owned.Remove(ctx, r.Client, o); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", kind.Kind, o.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// lostAfter is how long a pod may outlive its deletion and its grace period: a
// kubelet that is there has ended it by then.
const lostAfter = time.Minute

// waitsFor says why a daemon that gives no answer does not run, as far as it
// can be seen.
func (r *Reconciler) waitsFor(ctx context.Context, pool *v1alpha1.HSMPool, member string) *conditions.Problem {
	name := hsmpool.DaemonName(pool.Name, member)
	set := &appsv1.StatefulSet{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, set); err != nil || set.Status.ReadyReplicas > 0 {
		return nil
	}
	message := fmt.Sprintf("member %q: the pod of StatefulSet %q is not ready; `kubectl describe pods -l app.kubernetes.io/instance=%s` says why", member, name, name)
	pod := &corev1.Pod{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name + "-0"}, pod)
	if err == nil && pod.DeletionTimestamp != nil && r.Clock.Now().After(pod.DeletionTimestamp.Add(lostAfter)) {
		message = fmt.Sprintf("member %q: pod %q was deleted and does not end, so that no other takes its place: its node %q does not answer; where that is down for good, delete the Node, or taint it with node.kubernetes.io/out-of-service", member, pod.Name, pod.Spec.NodeName)
	}
	return &conditions.Problem{Reason: v1alpha1.ReasonDaemonNotReady, Message: message}
}

// blame what is known to be wrong with the daemons that the operator runs,
// rather than what it leads to. That a change waits is not why one cannot sign.
func blame(pool *v1alpha1.HSMPool, observations []hsmpool.Observation, problems map[string]*conditions.Problem, waitsFor func(member string) *conditions.Problem) []hsmpool.Observation {
	blamed := slices.Clone(observations)
	for i := range blamed {
		o := &blamed[i]
		if pool.Spec.Members[i].Remote != nil {
			continue
		}
		problem := cmp.Or(problems[o.Member], problems[""])
		if problem == nil && o.State == v1alpha1.HSMMemberUnknown {
			problem = waitsFor(o.Member)
		}
		if problem != nil && (problem.Reason != v1alpha1.ReasonProgressing || o.Problem == nil) {
			o.Problem = problem
		}
	}
	return blamed
}
