package benchmark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/keypair"
)

// lookForReferences is how often it is looked whether what the spec names is there.
const lookForReferences = 10 * time.Second

// mostLog is the most that is read of a pod's log.
const mostLog = 8 << 20

// outcome of an action.
type outcome struct {
	// recorded measurements.
	recorded records
	// leftOut says of peers why they are, from now on.
	leftOut []string
	// next is after how long something is due that no event tells; 0: nothing.
	next time.Duration
	// note is what the status has to have before the gateway is scaled.
	note *note
	// report that was made; unstored is why no ConfigMap has it, nil where one does.
	report   *report.Report
	unstored error
	// restored: the gateway was put back.
	restored bool
}

// act does what comes next. A problem that it returns is for the status.
func (r *Reconciler) act(ctx context.Context, s state, a plan.Action) (outcome, error) {
	b := s.benchmark
	switch a.Kind {
	case plan.Scale:
		return r.scale(ctx, s, a.Measurements[0])
	case plan.WaitProgrammed:
		return r.applyPeers(ctx, s, a.Measurements[0].Replicas)
	case plan.CreateJob:
		err := r.createJob(ctx, s, a)
		if refused(err) {
			return r.keep(ctx, b, a.Measurements, record{Attempt: a.Attempt, Reason: v1alpha1.ReasonGeneratorUnschedulable,
				Message: fmt.Sprintf("%v; allow it in namespace %q, or change spec.generator in another benchmark", err, b.Namespace)})
		}
		return outcome{}, err
	case plan.Collect:
		one, err := r.collect(ctx, s, a)
		if err != nil {
			return outcome{}, err
		}
		return r.keep(ctx, b, a.Measurements, one)
	case plan.RecordFailure:
		if a.Reason == v1alpha1.ReasonPeerNotReady {
			o, err := r.leaveOut(ctx, s, a.Measurements[0].Peer, a.Measurements, a.Message)
			o.leftOut = []string{a.Message}
			return o, err
		}
		return r.keep(ctx, b, a.Measurements, record{Attempt: a.Attempt, Reason: a.Reason, Message: a.Message})
	case plan.WaitJob:
		next, err := r.observeUsage(ctx, s, a.Job)
		return outcome{next: next}, err
	case plan.DeleteJob:
		return r.deleteJob(ctx, s, a.Job)
	case plan.Restore:
		return r.restore(ctx, s)
	case plan.Finish:
		full, unstored, err := r.writeReport(ctx, s)
		if _, isProblem := conditions.AsProblem(err); isProblem && b.Status.Phase == v1alpha1.BenchmarkAborting {
			err = nil // why it was aborted is what the status has to say
		}
		return outcome{report: full, unstored: unstored}, err
	}
	return outcome{}, nil
}

func (r *Reconciler) keep(ctx context.Context, b *v1alpha1.QTLSBenchmark, measurements []plan.Measurement, one record) (outcome, error) {
	o := outcome{recorded: records{}}
	text, err := one.text()
	if err != nil {
		return outcome{}, err
	}
	var kept record // as whoever reads it has it
	if err := json.Unmarshal([]byte(text), &kept); err != nil {
		return outcome{}, err
	}
	for _, m := range measurements {
		if err := r.record(ctx, b, m, kept, text); err != nil {
			return outcome{}, err
		}
		o.recorded[m.Name()] = kept
	}
	return o, nil
}

// scale the gateway, or make the copy. Nothing is touched before it is known that
// a load can be made, and before the status says how to put it back.
func (r *Reconciler) scale(ctx context.Context, s state, m plan.Measurement) (outcome, error) {
	b, now, replicas := s.benchmark, r.Clock.Now(), m.Replicas
	if b.Status.StartTime == nil {
		if err := r.canBegin(ctx, s, replicas); err != nil {
			return outcome{}, err
		}
	}
	if s.measured == nil { // a copy that is to be made
		g := copyOf(s.source, b)
		if err := take(g, b, replicas, now); err != nil {
			return outcome{}, err
		}
		err := r.Create(ctx, g)
		if refused(err) {
			return outcome{}, conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "QTLSGateway %q, the copy of %q: %v; allow it in namespace %q", g.Name, b.Spec.GatewayRef.Name, err, b.Namespace)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return outcome{}, fmt.Errorf("QTLSGateway %s: %w", g.Name, err)
		}
		return outcome{}, nil
	}
	if n := noteFor(b, s.measured, replicas); n != nil {
		return outcome{note: n}, nil
	}
	err := r.patch(ctx, s.measured, func(g *v1alpha1.QTLSGateway) error { return take(g, b, replicas, now) })
	if !refused(err) {
		return outcome{}, err
	}
	if b.Status.StartTime == nil {
		return outcome{}, conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "%v; allow it %d replicas in namespace %q", err, replicas, b.Namespace)
	}
	// A run does not wait for somebody to allow it so many: others may be.
	return r.keep(ctx, b, s.plan.NotProgrammed(m, s.observed.Records), record{Reason: v1alpha1.ReasonGatewayNotProgrammed,
		Message: fmt.Sprintf("the gateway may not have %d replicas: %v", replicas, err)})
}

// refused by a quota, a webhook, or the API server's rules: asking again does not help soon.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// immutable is an error in a benchmark's spec, which does not change.
func immutable(format string, args ...any) error {
	return conditions.Stalled(v1alpha1.ReasonInvalid, "%s; a benchmark is immutable: create another one", fmt.Sprintf(format, args...))
}

// canBegin says why a run cannot begin: a problem that is stalled where nothing but
// another benchmark helps, for a spec does not change.
func (r *Reconciler) canBegin(ctx context.Context, s state, replicas int32) error {
	b, now := s.benchmark, r.Clock.Now()
	thresholds, err := thresholdsOf(b)
	if err == nil {
		err = decidable(b, thresholds)
	}
	if err != nil {
		return immutable("%v", err)
	}
	for i, p := range b.Spec.Peers {
		if _, err := peer.ImageOf(i, p, r.Settings); err != nil {
			return conditions.Stalled(v1alpha1.ReasonImageNotAllowed, "%v; a benchmark is immutable: create another one", err)
		}
	}
	var first load.Load
	for i, m := range s.plan.Measurements {
		mode := b.Spec.Modes[slices.IndexFunc(b.Spec.Modes, func(mode v1alpha1.BenchmarkMode) bool { return mode.Name == m.Mode })]
		if _, err := generator.TargetOf(b, mode, s.source); err != nil { // which a change of the gateway can give it
			return conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%s: %v", m, err)
		}
		l, err := generator.LoadOf(b, s.plan, m, s.source, 1, 1, now)
		if err != nil {
			return immutable("%s: %v", m, err)
		}
		if i == 0 {
			first = l
		}
	}
	gateway := copyOf(s.source, b)
	if b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace {
		gateway = s.source
	}
	if err := withoutQuota(b, gateway); err != nil {
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v", err)
	}
	if _, err := r.authorities(ctx, b); err != nil {
		return err
	}
	if err := r.comparable(ctx, s); err != nil {
		return err
	}
	if err := r.notTaken(ctx, b, stored(b, "", nil)); err != nil { // where the report will be
		return err
	}
	var servers []peer.Server
	for i := range b.Spec.Peers {
		server, err := r.serverOf(ctx, b, s.source, i, replicas)
		if err != nil {
			return err
		}
		servers = append(servers, server)
	}
	job, err := generator.Job(b, gateway.Name, s.plan.Measurements[0], 1, first, r.Settings)
	if err != nil {
		return err
	}
	// What the API server will never take. What else may stand in the way of a Job, a
	// quota or a webhook that cannot be asked beforehand, shows when it is made.
	if err := r.Create(ctx, job, client.DryRunAll); apierrors.IsInvalid(err) {
		return immutable("spec.generator: %v", err)
	}
	for _, server := range servers {
		// One that is forbidden, by a quota or a policy, is left out when it is made.
		if err := r.Create(ctx, peer.Deployment(b, gateway, server, r.Settings), client.DryRunAll); apierrors.IsInvalid(err) {
			return immutable("spec.peers: peer %q: %v", server.Peer.Name, err)
		}
	}
	return nil
}

// comparable says why a run could not be compared with the baseline that its spec names.
func (r *Reconciler) comparable(ctx context.Context, s state) error {
	b := s.benchmark
	baseline, err := r.baseline(ctx, b)
	if baseline == nil || err != nil {
		return err
	}
	if err := r.describeHSM(ctx, &s); err != nil {
		return err
	}
	var replicas []int
	for _, n := range b.Spec.Replicas {
		replicas = append(replicas, int(n))
	}
	// One of a schedule is to begin another level where quotas or load are others.
	force := b.Spec.BaselineRef.Force || metav1.GetControllerOf(b) != nil
	if why := baseline.Unfit(head(s), replicas, force); len(why) > 0 {
		return immutable("spec.baselineRef: no comparison with the report of %q could pass: %s; name another one, measure one with this spec first, or set force where it is quotas or load alone", baseline.Name, strings.Join(why, "; "))
	}
	return nil
}

// withoutQuota says which mode's capacity could be no result, for the gateway that would be
// measured has no CPU quota, which is to limit it.
func withoutQuota(b *v1alpha1.QTLSBenchmark, g *v1alpha1.QTLSGateway) error {
	if quota(g) > 0 {
		return nil
	}
	for i, m := range b.Spec.Modes {
		if validity.Bottleneck(m.Bottleneck) == validity.CPUQuota {
			return fmt.Errorf("spec.modes[%d]: the CPU quota of replicas is to limit mode %q (bottleneck: %s), and QTLSGateway %q has none: no capacity would be a result; set its spec.resources.limits.cpu, or with gatewayRef.use: Copy spec.gatewayRef.resources of the benchmark, which is immutable",
				i, m.Name, validity.CPUQuota, b.Spec.GatewayRef.Name)
		}
	}
	return nil
}

// patch a gateway as it was read. Where it has changed since, it is looked at
// again.
func (r *Reconciler) patch(ctx context.Context, g *v1alpha1.QTLSGateway, change func(*v1alpha1.QTLSGateway) error) error {
	before := g.DeepCopy()
	if err := change(g); err != nil {
		return err
	}
	err := r.Patch(ctx, g, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("QTLSGateway %s: %w", g.Name, err)
	}
	return nil
}

// deleteJob of the load generator. At the end of a run the gateway is put back also where
// that is refused: the Job ends by itself.
func (r *Reconciler) deleteJob(ctx context.Context, s state, name string) (outcome, error) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.benchmark.Namespace, Name: name}}
	err := client.IgnoreNotFound(r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	if !refused(err) {
		return outcome{}, err
	}
	err = conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "Job %q cannot be deleted: %v; allow it in namespace %q", name, err, job.Namespace)
	if !s.ending() {
		return outcome{}, err
	}
	done, failed := r.restore(ctx, s)
	return done, errors.Join(failed, err)
}

// restore the gateway, or delete the copy; and take the peers away, which the gateway does
// not wait for.
func (r *Reconciler) restore(ctx context.Context, s state) (outcome, error) {
	done, err := r.putBack(ctx, s)
	peers := r.deletePeers(ctx, s.benchmark, func(string) bool { return true })
	if refused(peers) {
		peers = conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "%v; allow it in namespace %q", peers, s.benchmark.Namespace)
	}
	return done, errors.Join(err, peers)
}

// putBack the gateway, or delete the copy.
func (r *Reconciler) putBack(ctx context.Context, s state) (outcome, error) {
	if !s.observed.Gateway.Held {
		return outcome{}, nil
	}
	var err error
	if s.benchmark.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace {
		err = r.patch(ctx, s.measured, func(g *v1alpha1.QTLSGateway) error { giveBack(g, heldBy(s.benchmark, g)); return nil })
	} else {
		err = client.IgnoreNotFound(r.Delete(ctx, s.measured, client.Preconditions{UID: &s.measured.UID}))
	}
	switch {
	case apierrors.IsNotFound(err):
		return outcome{}, nil // the next step sees that it is gone
	case refused(err):
		return outcome{}, conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "%v; allow it, for the gateway is not put back", err)
	}
	return outcome{restored: err == nil}, err
}

// release the gateways that a benchmark of this name has, and that is not there:
// it was deleted, or is another one of the same name.
func (r *Reconciler) release(ctx context.Context, benchmark types.NamespacedName, present types.UID, gone bool) error {
	var list v1alpha1.QTLSGatewayList
	if err := r.List(ctx, &list, client.InNamespace(benchmark.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		g := &list.Items[i]
		h, err := holdOf(g)
		if err != nil || h == nil || h.Benchmark != benchmark.Name || !gone && h.UID == present {
			continue
		}
		if owner := metav1.GetControllerOf(g); owner != nil && owner.UID == h.UID {
			continue // a copy goes with its benchmark
		}
		if err := r.patch(ctx, g.DeepCopy(), func(g *v1alpha1.QTLSGateway) error { giveBack(g, h); return nil }); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) createJob(ctx context.Context, s state, a plan.Action) error {
	b, m := s.benchmark, a.Measurements[0]
	ca, err := r.authorities(ctx, b)
	if err != nil {
		return err
	}
	if err := r.apply(ctx, b, generator.Files(b, ca)); err != nil {
		return err
	}
	load, err := generator.LoadOf(b, s.plan, m, s.measured, a.Attempt, a.Rate, r.Clock.Now())
	if err != nil {
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonInvalid, "%v", err)
	}
	if m.Peer != "" {
		if err := r.retarget(ctx, s, m, &load); err != nil {
			return err
		}
	}
	job, err := generator.Job(b, s.measured.Name, m, a.Attempt, load, r.Settings)
	if err != nil {
		return err
	}
	err = r.Create(ctx, job)
	if apierrors.IsAlreadyExists(err) {
		return r.notOurs(ctx, b, job.Name)
	}
	if err != nil {
		return fmt.Errorf("Job %s: %w", job.Name, err)
	}
	return nil
}

// notOurs says whether a Job of a name that is needed is somebody else's. One of
// our own is merely not in the cache yet.
func (r *Reconciler) notOurs(ctx context.Context, b *v1alpha1.QTLSBenchmark, name string) error {
	job := &batchv1.Job{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, job)
	if err == nil && !metav1.IsControlledBy(job, b) {
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "Job %q exists in namespace %q and is not this benchmark's; delete it, or rename the benchmark", name, b.Namespace)
	}
	return client.IgnoreNotFound(err)
}

// notTaken says whether there is an object of a name that the benchmark needs, and
// that is not its own.
func (r *Reconciler) notTaken(ctx context.Context, b *v1alpha1.QTLSBenchmark, c client.Object) error {
	kind, name := c.GetObjectKind().GroupVersionKind(), c.GetName()
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(kind)
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(c), existing)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, name, err)
	}
	if err == nil && !metav1.IsControlledBy(existing, b) {
		return conditions.Waiting(lookForReferences, v1alpha1.ReasonNotApplied, "%s %q exists in namespace %q and is not this benchmark's; delete or rename it, or rename the benchmark", kind.Kind, name, c.GetNamespace())
	}
	return nil
}

// apply an object that belongs to the benchmark, unless one of its name is there
// that does not.
func (r *Reconciler) apply(ctx context.Context, b *v1alpha1.QTLSBenchmark, c client.Object) error {
	if err := r.notTaken(ctx, b, c); err != nil {
		return err
	}
	kind, name := c.GetObjectKind().GroupVersionKind(), c.GetName()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: object}
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, name, err)
	}
	return nil
}

// authorities that clients trust, as one PEM bundle: certificates, and nothing
// else that the objects may hold.
func (r *Reconciler) authorities(ctx context.Context, b *v1alpha1.QTLSBenchmark) (string, error) {
	var bundle strings.Builder
	for i, ref := range b.Spec.Target.CARefs {
		data, err := r.authority(ctx, b.Namespace, ref)
		if err != nil {
			return "", err
		}
		if data == nil {
			return "", conditions.Waiting(lookForReferences, v1alpha1.ReasonAuthorityNotFound, "spec.target.caRefs[%d]: there is no %s %q with key %q in namespace %q; create it or name another", i, ref.Kind, ref.Name, ref.Key, b.Namespace)
		}
		certs, err := keypair.ParseCertificates(data)
		if err != nil {
			return "", conditions.Waiting(lookForReferences, v1alpha1.ReasonAuthorityInvalid, "spec.target.caRefs[%d]: %s %q, key %q: %v", i, ref.Kind, ref.Name, ref.Key, err)
		}
		bundle.Write((&keypair.KeyPair{Chain: certs}).ChainPEM())
	}
	return bundle.String(), nil
}

func (r *Reconciler) authority(ctx context.Context, namespace string, ref v1alpha1.CAReference) ([]byte, error) {
	key := client.ObjectKey{Namespace: namespace, Name: ref.Name}
	if ref.Kind == v1alpha1.CAKindConfigMap {
		c := &corev1.ConfigMap{}
		err := r.APIReader.Get(ctx, key, c)
		if text, ok := c.Data[ref.Key]; ok {
			return []byte(text), nil
		}
		return nil, client.IgnoreNotFound(err)
	}
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, key, secret)
	return secret.Data[ref.Key], client.IgnoreNotFound(err)
}

// unreadable is what the pods of a Job that ended well have left, and is no
// result. To look again does not help. A log that cannot be had is waited for, as long as
// for a node: it may go with its pod.
type unreadable struct{ error }

// collect what the pods of a Job printed.
func (r *Reconciler) collect(ctx context.Context, s state, a plan.Action) (record, error) {
	i := slices.IndexFunc(s.jobs, func(j batchv1.Job) bool { return j.Name == a.Job })
	pods, err := r.podsOf(ctx, &s.jobs[i])
	if err != nil {
		return record{}, err
	}
	used, err := r.used(ctx, &s.jobs[i], s.measured)
	if err != nil {
		return record{}, err
	}
	if used != nil && a.Measurements[0].Peer != "" {
		images, err := r.peerImages(ctx, s.benchmark)
		if err != nil {
			return record{}, err
		}
		used.Images = append(used.Images, images...)
	}
	result, machines, err := r.read(ctx, pods, generator.Point(s.benchmark, a.Measurements[0]), int(*s.jobs[i].Spec.Completions))
	var not unreadable
	_, waits := conditions.AsProblem(err)
	since := ptr.Deref(s.jobs[i].Status.CompletionTime, metav1.Time{})
	if errors.As(err, &not) || waits && r.Clock.Now().Sub(since.Time) >= r.Limits.Unschedulable {
		return record{Attempt: a.Attempt, Reason: v1alpha1.ReasonResultUnreadable, Message: conditions.Shorten(fmt.Sprintf("Job %q: %v", a.Job, err), 1500)}, nil
	}
	if err != nil {
		return record{}, err
	}
	made, err := measured(a.Attempt, result, used)
	made.Machines, made.Images = machines, imagesOf(pods)
	return made, err
}

// read the shards of a point from the pods' logs and merge them; with the machines that
// they were made on.
func (r *Reconciler) read(ctx context.Context, pods []corev1.Pod, point string, completions int) (shard.Result, []report.Machine, error) {
	var shards []shard.Shard
	var machines []report.Machine
	for i := range pods {
		pod := &pods[i]
		if pod.Status.Phase != corev1.PodSucceeded {
			continue
		}
		log, err := r.log(ctx, pod)
		if err != nil {
			return shard.Result{}, nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonResultUnreadable, "log of pod %q: %v; see that the API server reaches the kubelet of node %q, and that the operator may read logs", pod.Name, err, pod.Spec.NodeName)
		}
		found, err := shard.Read(bytes.NewReader(log))
		switch {
		case err != nil:
			return shard.Result{}, nil, unreadable{fmt.Errorf("pod %q: %w", pod.Name, err)}
		case len(found) != 1:
			return shard.Result{}, nil, unreadable{fmt.Errorf("pod %q printed %d lines that begin with %q, not 1", pod.Name, len(found), shard.Prefix)}
		case found[0].Point != point:
			return shard.Result{}, nil, unreadable{fmt.Errorf("pod %q measured %q, not %q", pod.Name, found[0].Point, point)}
		}
		shards = append(shards, found[0])
		if m := found[0].Machine; m != nil && !slices.ContainsFunc(machines, func(o report.Machine) bool { return o.Name == pod.Spec.NodeName }) {
			machines = append(machines, machineOf(pod.Spec.NodeName, *m))
		}
	}
	if len(shards) != completions {
		return shard.Result{}, nil, unreadable{fmt.Errorf("%d of %d pods that ended well are still there; were some deleted?", len(shards), completions)}
	}
	result, err := shard.Merge(shards)
	if err != nil {
		return shard.Result{}, nil, unreadable{err}
	}
	return result, machines, nil
}

func (r *Reconciler) log(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	stream, err := r.Logs(ctx, pod.Namespace, pod.Name, generator.Container)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return io.ReadAll(io.LimitReader(stream, mostLog))
}
