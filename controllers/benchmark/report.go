package benchmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/evidence"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/threshold"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/version"
)

func reportName(b *v1alpha1.QTLSBenchmark) string { return b.Name + "-report" }

// head of a report: all that is not measured.
func head(s state) report.Report {
	b := s.benchmark
	r := report.Report{Name: b.Name, Namespace: b.Namespace, UID: string(b.UID), Gateway: b.Spec.GatewayRef.Name,
		Finished: s.observed.Now.UTC(), Seed: b.Status.Plan.Seed}
	if set := b.Spec.Load; set.WarmUp == nil && set.Duration == nil && set.Repetitions == nil {
		r.Preset = string(set.Preset)
	}
	l := s.plan.Load
	r.Load = &report.Load{ClientsPerReplica: int(l.VirtualUsersPerReplica), Percent: int(l.LatencyLoad), Pods: int(generator.Pods(b)), WarmUp: l.WarmUp, Window: l.Duration, Repetitions: int(l.Repetitions)}
	if s.aborted() {
		r.Aborted = ptr.To(whyAborted(b))
		r.Notes = append(r.Notes, "The run was aborted: "+r.Aborted.String())
	}
	if b.Status.StartTime != nil {
		r.Started = b.Status.StartTime.UTC()
	}
	for _, m := range b.Spec.Modes {
		mode := report.Mode{Name: m.Name, Resumed: resumes(m), HSM: s.inHSM[m.Name]}
		if m.Operation != v1alpha1.BenchmarkOperationHandshake {
			mode.Operation, mode.Path = string(m.Operation), generator.PathOf(m)
		}
		mode.Listener, mode.ServerName = target(s, m)
		mode.Transfer = int64(m.Size.Bytes())
		for _, g := range m.Groups {
			mode.Groups = append(mode.Groups, string(g))
		}
		for _, scheme := range m.SignatureSchemes {
			mode.SignatureSchemes = append(mode.SignatureSchemes, string(scheme))
		}
		r.Modes = append(r.Modes, mode)
	}
	if len(s.inHSM) > 0 && b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace {
		r.Notes = append(r.Notes, fmt.Sprintf("Modes with the key in an HSM had what QTLSGateway %q left them of it: that went on signing there.", b.Spec.GatewayRef.Name))
	}
	for _, p := range b.Spec.Peers {
		for _, mode := range r.Modes[:len(b.Spec.Modes)] {
			if p.MeasuredIn(mode.Name) {
				mode.Name, mode.Peer, mode.PeerOf = plan.Subject(mode.Name, p.Name), p.Name, mode.Name
				r.Modes = append(r.Modes, mode)
			}
		}
	}
	r.Environment = environment(s)
	return r
}

// target of a mode's load: the listener and the server name, as far as the gateway, which
// may be gone, still has them.
func target(s state, m v1alpha1.BenchmarkMode) (listener, serverName string) {
	gateway := cmp.Or(s.measured, s.source)
	if gateway == nil {
		return "", ""
	}
	if l, err := generator.ListenerOf(s.benchmark, m, gateway); err == nil {
		listener = l.Name
	}
	if t, err := generator.TargetOf(s.benchmark, m, gateway); err == nil {
		serverName = t.ServerName
	}
	return listener, serverName
}

// environment that the figures belong to, as far as it was observed.
func environment(s state) report.Environment {
	e := report.Environment{Versions: []report.Program{{Name: "Q-TLS", Version: version.Version}}}
	program := func(name, version string) {
		if p := (report.Program{Name: name, Version: version}); version != "" && !slices.Contains(e.Versions, p) {
			e.Versions = append(e.Versions, p)
		}
	}
	program("Kubernetes", s.kubernetes)
	described := func(known *[]report.Machine, machines []report.Machine) {
		for _, m := range machines {
			if !slices.ContainsFunc(*known, func(o report.Machine) bool { return o.Name == m.Name }) {
				*known = append(*known, m)
			}
		}
	}
	image := func(images []report.Image) {
		for _, i := range images {
			if !slices.Contains(e.Images, i) {
				e.Images = append(e.Images, i)
			}
		}
	}
	var measured *report.Quota // as its pods had it: the gateway that a copy is made of may change, or go, meanwhile
	for _, m := range s.plan.Measurements {
		one := s.records[m.Name()]
		for _, name := range slices.Sorted(maps.Keys(one.Versions)) {
			program(name+", load generator", one.Versions[name])
		}
		described(&e.Generators, one.Machines)
		image(one.Images)
		u := one.Usage
		if u == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(u.Versions)) {
			program(name+", gateway", u.Versions[name])
		}
		if measured == nil {
			measured = u.Quota
		}
		described(&e.Machines, u.Machines)
		image(u.Images)
	}
	slices.SortStableFunc(e.Versions[1:], func(a, b report.Program) int { return strings.Compare(a.Name, b.Name) })
	for _, machines := range [][]report.Machine{e.Machines, e.Generators} {
		slices.SortFunc(machines, func(a, b report.Machine) int { return strings.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(e.Images, func(a, b report.Image) int { return strings.Compare(a.Name+a.Digest, b.Name+b.Digest) })
	if measured == nil {
		measured = ptr.To(limitsOf("haproxy", cmp.Or(s.benchmark.Spec.GatewayRef.Resources, resourcesOf(s.source))))
	}
	ofGenerator := generator.Resources(s.benchmark)
	e.Quotas = []report.Quota{*measured, limitsOf(generator.Container, &ofGenerator)}
	e.HSM = s.hsm
	return e
}

// limitsOf a container with such resources; nil is without any.
func limitsOf(container string, r *corev1.ResourceRequirements) report.Quota {
	q := report.Quota{Container: container}
	if r != nil && !r.Limits.Cpu().IsZero() {
		q.CPU = r.Limits.Cpu().String()
	}
	if r != nil && !r.Limits.Memory().IsZero() {
		q.Memory = r.Limits.Memory().String()
	}
	return q
}

// resourcesOf a gateway that may be gone.
func resourcesOf(g *v1alpha1.QTLSGateway) *corev1.ResourceRequirements {
	if g == nil {
		return nil
	}
	return g.Spec.Resources
}

// neverMade is why a measurement that was planned has no result when a run ends
// before it.
const neverMade = "not measured: the run ended before"

// measurements that are recorded, of those chosen; when the run is aborted those
// too that were planned, for it is of them that the others are a part. Decoded,
// they take much memory.
func measurements(s state, choose func(plan.Measurement) bool) []report.Measurement {
	var all []report.Measurement
	noCapacity := map[string]string{} // why, by measurement
	first := firstImages(s)
	limit := 0.0 // of the generator's pods
	if resources := s.benchmark.Spec.Generator.Resources; resources != nil {
		limit = resources.Limits.Cpu().AsApproximateFloat64()
	}
	for _, m := range s.plan.Measurements { // a capacity before its latency
		one, done := s.records[m.Name()]
		if !choose(m) || !done && !s.aborted() {
			continue
		}
		r := report.Measurement{Mode: m.Subject(), Replicas: int(m.Replicas), Phase: validity.Phase(m.Phase), Block: int(m.Repetition)}
		result, err := one.decode()
		switch {
		case !done:
			r.Missing = neverMade
		case one.Reason != "":
			r.Missing = one.Reason + ": " + one.Message
		case err != nil:
			r.Missing = fmt.Sprintf("%s: its record has no result: %v", v1alpha1.ReasonResultUnreadable, err)
		default:
			r.Result = &result
			r.Evidence = evidenceOf(modeOf(s.benchmark, m.Mode), m, s.plan, result, one.Usage, s.records[capacityOf(m)].PerSecond)
			r.Evidence.OtherImages = one.otherImages(first)
			r.Evidence.InPlace = s.benchmark.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace
			r.Evidence.Generator = evidence.Generator(result, s.plan.Load.Duration, limit)
			if m.Phase == plan.Latency {
				r.Evidence.CapacityInvalid = noCapacity[capacityOf(m)]
			} else if reasons := validity.Judge(r.Evidence); len(reasons) > 0 {
				noCapacity[m.Name()] = fmt.Sprintf("%s: %s", reasons[0].Rule, reasons[0].Message)
			}
		}
		if m.Phase == plan.Capacity && r.Missing != "" {
			noCapacity[m.Name()] = fmt.Sprintf("%s: %s", validity.NotMeasured, r.Missing)
		}
		all = append(all, r)
	}
	return all
}

// images of a measurement: the generator's, the gateway's and those of peers.
func (r record) images() []report.Image {
	if r.Usage == nil {
		return r.Images
	}
	return slices.Concat(r.Images, r.Usage.Images)
}

// firstImages of each container, by its name, in the order of the plan.
func firstImages(s state) map[string]string {
	first := map[string]string{}
	for _, m := range s.plan.Measurements {
		for _, i := range s.records[m.Name()].images() {
			if _, known := first[i.Name]; !known {
				first[i.Name] = i.Digest
			}
		}
	}
	return first
}

// otherImages are the containers of a measurement that had another image at first.
func (r record) otherImages(first map[string]string) (containers []string) {
	for _, i := range r.images() {
		if first[i.Name] != i.Digest && !slices.Contains(containers, i.Name) {
			containers = append(containers, i.Name)
		}
	}
	return containers
}

// fullReport of a run, point by point: the results of all take more memory than the
// operator has.
func fullReport(s state) (report.Report, error) {
	top := head(s)
	b, err := report.NewBuilder(top)
	if err != nil {
		return report.Report{}, err
	}
	for _, mode := range top.Modes {
		for _, n := range s.benchmark.Spec.Replicas {
			if err := b.Add(measurements(s, func(m plan.Measurement) bool { return m.Subject() == mode.Name && m.Replicas == n })); err != nil {
				return report.Report{}, err
			}
		}
	}
	r := b.Report()
	thresholds, err := thresholdsOf(s.benchmark)
	r.Evaluate(thresholds)
	return r, err
}

// thresholdsOf a benchmark.
func thresholdsOf(b *v1alpha1.QTLSBenchmark) ([]threshold.Threshold, error) {
	var all []threshold.Threshold
	var errs []error
	for i, text := range b.Spec.Thresholds {
		t, err := threshold.Parse(string(text))
		if err == nil && t.Mode != "" && !slices.ContainsFunc(b.Spec.Modes, func(m v1alpha1.BenchmarkMode) bool { return m.Name == t.Mode }) {
			err = fmt.Errorf("mode %q is none of spec.modes", t.Mode)
		}
		if err == nil && t.Replicas != 0 && !slices.Contains(b.Spec.Replicas, int32(t.Replicas)) {
			err = fmt.Errorf("%d is none of spec.replicas", t.Replicas)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("spec.thresholds[%d]: %w", i, err))
			continue
		}
		all = append(all, t)
	}
	return all, errors.Join(errs...)
}

// decidable says which threshold, or comparison, of a benchmark no run can decide, whatever
// it measures.
func decidable(b *v1alpha1.QTLSBenchmark, thresholds []threshold.Threshold) error {
	once := plan.LoadOf(b.Spec.Load).Repetitions == 1
	var errs []error
	for i, t := range thresholds {
		bad := func(why string) { errs = append(errs, fmt.Errorf("spec.thresholds[%d]: %q: %s", i, t, why)) }
		switch {
		case t.Metric == threshold.Efficiency && !slices.Contains(b.Spec.Replicas, 1):
			bad("the efficiency is relative to 1 replica, and spec.replicas has no 1")
		case t.Metric == threshold.Efficiency && t.Replicas == 0 && len(b.Spec.Replicas) == 1:
			bad("the efficiency of 1 replica is 1, and spec.replicas has no other number")
		case t.Metric == threshold.Resumption && t.Mode == "" && !slices.ContainsFunc(b.Spec.Modes, resumes):
			bad("no mode resumes; give one handshake: Resumed")
		case once && !t.Metric.Exact():
			bad("its verdict needs an interval, and that 2 of spec.load.repetitions")
		}
	}
	if once && b.Spec.BaselineRef != nil {
		errs = append(errs, errors.New("spec.baselineRef: what is compared needs an interval, and that 2 of spec.load.repetitions"))
	}
	return errors.Join(errs...)
}

// baseline that the spec names; nil without one.
func (r *Reconciler) baseline(ctx context.Context, b *v1alpha1.QTLSBenchmark) (*report.Report, error) {
	ref := b.Spec.BaselineRef
	if ref == nil {
		return nil, nil
	}
	c := &corev1.ConfigMap{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: ref.Name}, c)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", ref.Name, err)
	}
	place := report.Place{}
	for name, text := range c.Data {
		place[name] = []byte(text)
	}
	maps.Copy(place, c.BinaryData)
	text, ok, err := place.JSON()
	if !ok {
		return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonBaselineNotFound, "spec.baselineRef: there is no ConfigMap %q with key %q in namespace %q; name the report of an earlier benchmark", ref.Name, report.JSONFile, b.Namespace)
	}
	var parsed report.Report
	if err == nil {
		parsed, err = report.Parse(text)
	}
	if err != nil {
		return nil, conditions.Waiting(lookForReferences, v1alpha1.ReasonBaselineInvalid, "spec.baselineRef: ConfigMap %q, key %q: %v", ref.Name, report.JSONFile, err)
	}
	return &parsed, nil
}

// describeHSM adds which modes are of an HSM, and of which, for a report.
func (r *Reconciler) describeHSM(ctx context.Context, s *state) (err error) {
	if s.inHSM, err = r.modesInHSM(ctx, *s); err != nil || len(s.inHSM) == 0 {
		return err
	}
	s.hsm, err = r.hsmOf(ctx, s.source)
	return err
}

// modesInHSM are those whose clients are served with a key in an HSM, as far as the
// listeners still have the certificates that they were measured with.
func (r *Reconciler) modesInHSM(ctx context.Context, s state) (map[string]bool, error) {
	in := map[string]bool{}
	if s.source == nil || s.source.Spec.HSMRef == nil {
		return in, nil
	}
	for _, m := range s.benchmark.Spec.Modes {
		listener, err := generator.ListenerOf(s.benchmark, m, s.source)
		if err != nil {
			continue // it was there when it was measured
		}
		served, err := r.certificatesOf(ctx, s.source.Namespace, listener)
		if _, gone := conditions.AsProblem(err); gone {
			continue
		}
		if err != nil {
			return nil, err
		}
		if c, err := peer.Choose(m, listener.Preference, served); err == nil && c.HSM {
			in[m.Name] = true
		}
	}
	return in, nil
}

// hsmOf a gateway is what its modes in HSMs depend on; nil where its pool is gone.
func (r *Reconciler) hsmOf(ctx context.Context, g *v1alpha1.QTLSGateway) ([]report.HSMMember, error) {
	pool := &v1alpha1.HSMPool{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: g.Spec.HSMRef.Name}, pool); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("HSMPool %s: %w", g.Spec.HSMRef.Name, err)
	}
	sessions := map[string]int{}
	if f, err := hsmpool.GatewayMembers(pool); err == nil {
		for _, m := range f.Members {
			sessions[m.Name] = int(m.Sessions)
		}
	}
	var members []report.HSMMember
	for _, m := range pool.Spec.Members {
		one := report.HSMMember{Name: m.Name, Sessions: sessions[m.Name]}
		switch {
		case m.Remote != nil:
			one.Kind = "remote"
		case m.Module != nil:
			one.Kind = "module"
		default:
			one.Kind = "daemon"
			if m.SoftToken != nil {
				one.Kind = "soft token"
			}
			limits := resources.HSMDResources(m)
			q := limitsOf("", &limits)
			one.CPU, one.Memory = orUnlimited(q.CPU), orUnlimited(q.Memory)
		}
		members = append(members, one)
	}
	return members, nil
}

func orUnlimited(limit string) string { return cmp.Or(limit, "unlimited") }

// writeReport of what was measured, if anything was. Where it is too large to be
// stored, or may not be, unstored says so, and what was measured is in the status alone.
func (r *Reconciler) writeReport(ctx context.Context, s state) (made *report.Report, unstored, err error) {
	if len(s.records) == 0 {
		return nil, nil, nil
	}
	if err := r.describeHSM(ctx, &s); err != nil {
		return nil, nil, err
	}
	full, err := fullReport(s)
	if err != nil {
		return nil, nil, err
	}
	baseline, err := r.baseline(ctx, s.benchmark)
	if problem, gone := conditions.AsProblem(err); gone {
		full.Notes = append(full.Notes, "The baseline is not compared with: "+problem.Message) // it was there when the run began
		full.NotCompared = &report.Why{Reason: problem.Reason, Message: problem.Message}
	} else if err != nil {
		return nil, nil, err
	}
	if baseline != nil {
		ref := s.benchmark.Spec.BaselineRef
		full.Compare(*baseline, float64(ptr.Deref(ref.Tolerance, v1alpha1.DefaultTolerance))/100, ref.Force)
	}
	places, err := full.Files()
	if errors.Is(err, report.ErrTooLarge) {
		return &full, fmt.Errorf("%w; have fewer modes, numbers of replicas, repetitions or peers in another benchmark", err), nil
	}
	if err != nil {
		return nil, nil, err
	}
	// The first one, which is the report, comes last: where it is, all are.
	for _, ending := range slices.Backward(slices.Sorted(maps.Keys(places))) {
		err := r.apply(ctx, s.benchmark, stored(s.benchmark, ending, places[ending]))
		// A run that is over waits for nobody.
		if refused(err) {
			return &full, fmt.Errorf("%w; allow it in namespace %q before another benchmark", err, s.benchmark.Namespace), nil
		}
		if _, taken := conditions.AsProblem(err); taken {
			return &full, err, nil
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return &full, nil, nil
}

// stored are files of a report, as their ConfigMap has them.
func stored(b *v1alpha1.QTLSBenchmark, ending string, files report.Place) *corev1.ConfigMap {
	c := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: generator.Meta(b, reportName(b)+ending),
		Data:       map[string]string{}, BinaryData: map[string][]byte{},
	}
	for name, content := range files {
		if strings.HasSuffix(name, report.Compressed) {
			c.BinaryData[name] = content
		} else {
			c.Data[name] = string(content)
		}
	}
	return c
}

// imagesOf pods, with their digests.
func imagesOf(pods []corev1.Pod) []report.Image {
	var images []report.Image
	for i := range pods {
		for _, c := range pods[i].Status.ContainerStatuses {
			image := report.Image{Name: c.Name, Digest: c.ImageID}
			if c.ImageID != "" && !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images
}

// podsOfGateway that are not ending.
func (r *Reconciler) podsOfGateway(ctx context.Context, g *v1alpha1.QTLSGateway) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(g.Namespace), client.MatchingLabels(resources.Selector(g.Name))); err != nil {
		return nil, fmt.Errorf("pods of QTLSGateway %s: %w", g.Name, err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}
