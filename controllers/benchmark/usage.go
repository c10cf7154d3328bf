package benchmark

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/evidence"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/machine"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/resources"
)

// Usages asks the agent of a gateway's pod what that has used.
type Usages func(ctx context.Context, gateway types.NamespacedName, address string) (dataplane.Usage, error)

// AskAgents over mutual TLS.
func AskAgents(clientOf func(gateway types.NamespacedName) *http.Client) Usages {
	return func(ctx context.Context, gateway types.NamespacedName, address string) (dataplane.Usage, error) {
		var u dataplane.Usage
		at := url.URL{Scheme: "https", Host: net.JoinHostPort(address, strconv.Itoa(mtls.StatusPort)), Path: dataplane.UsagePath}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return u, err
		}
		response, err := clientOf(gateway).Do(request)
		if err != nil {
			return u, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return u, fmt.Errorf("the agent answers %s", response.Status)
		}
		return u, json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<16)).Decode(&u)
	}
}

// askFor so long at most. An answer has its own time, and a HAProxy that is throttled
// answers its agent when it has got through the handshakes that wait: 64 of them take a
// replica with a twentieth of a CPU some seconds.
const (
	askFor     = 5 * time.Second
	askBriefly = 2 * time.Second // in the shortest windows
)

// sample is what a pod of the gateway had used at a moment.
type sample struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// ReadySince is nil while the pod is not ready.
	ReadySince *metav1.Time    `json:"readySince,omitempty"`
	Usage      dataplane.Usage `json:"usage"`
}

// sampleOf a pod.
func sampleOf(pod *corev1.Pod, u dataplane.Usage) sample {
	s := sample{Name: pod.Name, Node: pod.Spec.NodeName, Usage: u}
	if since, ready := resources.ReadySince(pod); ready {
		s.ReadySince = &metav1.Time{Time: since}
	}
	return s
}

// ready says whether the pod of a sample was so all the time until a later one.
func (s sample) ready(later sample) bool {
	return s.ReadySince != nil && later.ReadySince != nil && s.ReadySince.Equal(later.ReadySince)
}

// samples of all pods, by UID; of those that answered.
type samples map[types.UID]sample

// text for an annotation. All annotations of an object may have 256 KiB together, which
// a hundred pods outgrow; but samples resemble each other, and so they are compressed.
func (s samples) text() (string, error) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(z).Encode(s), z.Close()); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}

// samplesIn an annotation's text.
func samplesIn(text string) (s samples, err error) {
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	if err != nil {
		return nil, err
	}
	err = json.NewDecoder(z).Decode(&s)
	return s, err
}

// moments of a Job at which pods are sampled: before its load, just before it, when its
// window begins, and just before that ends. What comes between the first two is of others,
// and what is used between the latter two of the load alone. The samples lie on the Job, so
// that whoever collects its result has them.
var moments = []string{v1alpha1.AnnotationUsageIdle, v1alpha1.AnnotationUsageQuiet, v1alpha1.AnnotationUsageBegin, v1alpha1.AnnotationUsageEnd}

// moment says when a sample is due, and until when it makes sense.
func moment(l load.Load, which string) (due, until time.Time) {
	start, begin, end, window := time.Unix(0, l.Start), l.Begin(), l.End(), l.Window
	switch which {
	case v1alpha1.AnnotationUsageIdle:
		return start.Add(-idleBefore), start.Add(-2 * quietBefore)
	case v1alpha1.AnnotationUsageQuiet:
		return start.Add(-quietBefore), start
	case v1alpha1.AnnotationUsageBegin:
		return begin, begin.Add(window / 4)
	default:
		return end.Add(-max(window/10, min(500*time.Millisecond, window/4))), end
	}
}

// idleBefore a load the pods of its generator start, and look whether the gateway takes
// TCP connections; quietBefore it none of them has made one of TLS yet. Between the two a
// rate shows of one connection in seconds.
const idleBefore, quietBefore = 5 * time.Second, time.Second

// observeUsage takes the samples that are due, and says after how long the next
// one is. What is missed stays unobserved, and makes the measurement no result; it is
// made again where that was for the operator's being started anew.
func (r *Reconciler) observeUsage(ctx context.Context, s state, name string) (next time.Duration, err error) {
	i := slices.IndexFunc(s.jobs, func(j batchv1.Job) bool { return j.Name == name })
	job := &s.jobs[i]
	l, err := generator.LoadIn(job)
	if err != nil || job.DeletionTimestamp != nil {
		return 0, nil // not the operator's, or no longer: nothing to observe
	}
	for i, which := range moments {
		if _, done := job.Annotations[which]; done {
			continue
		}
		due, until := moment(l, which)
		now := r.Clock.Now()
		switch {
		case now.After(until):
			continue
		case now.Before(due):
			return due.Sub(now), nil
		}
		patience := askFor
		if i+1 < len(moments) { // and be there for the next
			next, _ := moment(l, moments[i+1])
			patience = min(askFor, max(askBriefly, next.Sub(now)))
		}
		taken, err := r.sample(ctx, s.measured, patience)
		if err != nil {
			return 0, err
		}
		text, err := taken.text()
		if err != nil {
			return 0, err
		}
		before := job.DeepCopy()
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, text)
		if err := r.Patch(ctx, job, client.MergeFrom(before)); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
	}
	return 0, nil
}

// missed says whether a Job has not all samples that it needs because this operator began
// its work when one of them was due, or later: those of its window, and of a gateway in
// place also those before the load. One that was there and too late, for agents that
// answer slowly in a short window, would be so the next time.
func missed(job *batchv1.Job, since time.Time, inPlace bool) bool {
	l, err := generator.LoadIn(job)
	if err != nil {
		return false
	}
	early := inPlace && !(hasSample(job, v1alpha1.AnnotationUsageIdle) && hasSample(job, v1alpha1.AnnotationUsageQuiet))
	due, _ := moment(l, v1alpha1.AnnotationUsageIdle)
	return early && since.After(due) || !observed(job) && since.After(l.Begin())
}

// observed says whether it was looked at the pods when the window of a Job began and when
// it ended, whoever answered then.
func observed(job *batchv1.Job) bool {
	return hasSample(job, v1alpha1.AnnotationUsageBegin) && hasSample(job, v1alpha1.AnnotationUsageEnd)
}

func hasSample(job *batchv1.Job, which string) bool { return job.Annotations[which] != "" }

// sample all pods of a gateway at once, and wait so long for them.
func (r *Reconciler) sample(ctx context.Context, g *v1alpha1.QTLSGateway, patience time.Duration) (samples, error) {
	pods, err := r.podsOfGateway(ctx, g)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	taken := samples{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range pods {
		pod := &pods[i]
		if pod.Status.PodIP == "" {
			continue
		}
		all.Go(func() {
			u, err := r.Usages(ctx, client.ObjectKeyFromObject(g), pod.Status.PodIP)
			if err != nil {
				return // the measurement says that this pod was not observed
			}
			mu.Lock()
			defer mu.Unlock()
			taken[pod.UID] = sampleOf(pod, u)
		})
	}
	all.Wait()
	return taken, nil
}

// usage of a gateway's pods and of their machines in the window of a measurement.
type usage struct {
	Replicas    []validity.Replica `json:"replicas,omitempty"`
	MachineIdle *float64           `json:"machineIdle,omitempty"`
	// Machines that the pods run on, and their images.
	Machines []report.Machine `json:"machines,omitempty"`
	Images   []report.Image   `json:"images,omitempty"`
	// Quota of each of them.
	Quota *report.Quota `json:"quota,omitempty"`
	// Versions of the programs in the pods.
	Versions map[string]string `json:"versions,omitempty"`
}

// used is the usage while a Job made its load, with the images that were in use; nil if
// it was not observed. Who was killed meanwhile the kubelet tells in any case.
func (r *Reconciler) used(ctx context.Context, job *batchv1.Job, g *v1alpha1.QTLSGateway) (*usage, error) {
	u, observed := usageOf(job, g), true
	if u == nil {
		u, observed = &usage{}, false
	}
	pods, err := r.podsOfGateway(ctx, g)
	if l, e := generator.LoadIn(job); e == nil {
		u.countKills(pods, l, quota(g))
	}
	if !observed && len(u.Replicas) == 0 {
		return nil, err
	}
	u.Images, u.Quota = imagesOf(pods), ptr.To(limitsOf("haproxy", g.Spec.Resources))
	return u, err
}

// countKills adds to the replicas the containers that were killed for lack of memory
// since a load began: of those the kernel's own count has gone with them. One that was
// away at both ends of the window, and so was not sampled, is a replica all the same.
func (u *usage) countKills(pods []corev1.Pod, l load.Load, quota float64) {
	for i := range pods {
		kills := killsSince(time.Unix(0, l.Start), pods[i].Status.ContainerStatuses)
		if kills == 0 {
			continue
		}
		at := slices.IndexFunc(u.Replicas, func(r validity.Replica) bool { return r.Name == pods[i].Name })
		if at < 0 {
			at = len(u.Replicas)
			u.Replicas = append(u.Replicas, validity.Replica{Name: pods[i].Name, Node: pods[i].Spec.NodeName, Quota: quota, Disturbed: true, Silent: true})
		}
		if one := &u.Replicas[at]; one.OOMKills == 0 {
			one.OOMKills = kills
		}
	}
}

// killsSince a moment, of those that the kubelet still tells: each container's last
// and, where it is not started again yet, the one before.
func killsSince(moment time.Time, containers []corev1.ContainerStatus) (kills int64) {
	for _, c := range containers {
		for _, ended := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			// The kubelet tells whole seconds.
			if ended != nil && ended.Reason == "OOMKilled" && !ended.FinishedAt.Time.Before(moment.Truncate(time.Second)) {
				kills++
			}
		}
	}
	return kills
}

// usageOf the gateway while a Job made its load; nil if it was not observed.
func usageOf(job *batchv1.Job, g *v1alpha1.QTLSGateway) *usage {
	taken := map[string]samples{}
	for _, which := range moments {
		some, err := samplesIn(job.Annotations[which])
		if err != nil && (which == v1alpha1.AnnotationUsageBegin || which == v1alpha1.AnnotationUsageEnd) {
			return nil
		}
		taken[which] = some
	}
	idle, quiet, begin, end := taken[v1alpha1.AnnotationUsageIdle], taken[v1alpha1.AnnotationUsageQuiet], taken[v1alpha1.AnnotationUsageBegin], taken[v1alpha1.AnnotationUsageEnd]
	l, _ := generator.LoadIn(job) // nothing is before one that is not known
	u := &usage{Versions: map[string]string{}}
	for uid, before := range begin {
		after, there := end[uid]
		one := validity.Replica{Disturbed: true, Silent: true}
		if there {
			one = evidence.Replica(before.Usage, after.Usage)
			one.Others = evidence.Others(idle[uid].Usage, quiet[uid].Usage, time.Unix(0, l.Start))
			maps.Copy(u.Versions, after.Usage.Versions)
		}
		one.Name, one.Node, one.Quota = before.Name, before.Node, quota(g)
		if c := idle[uid].Usage.Container; c != nil && !one.Disturbed {
			one.IdleMemory = c.Memory
		}
		restarted := one.Disturbed
		one.Disturbed = restarted || !before.ready(after)
		u.Replicas = append(u.Replicas, one)
		if restarted {
			continue
		}
		if m := before.Usage.Machine; !slices.ContainsFunc(u.Machines, func(o report.Machine) bool { return o.Name == before.Node }) {
			u.Machines = append(u.Machines, machineOf(before.Node, m))
		}
		if total := after.Usage.MachineTotal - before.Usage.MachineTotal; total > 0 {
			// The kernel may take idle time back that it has told: some waiting for I/O.
			idle := min(max(float64(after.Usage.MachineIdle-before.Usage.MachineIdle)/float64(total), 0), 1)
			if u.MachineIdle == nil || idle < *u.MachineIdle {
				u.MachineIdle = &idle
			}
		}
	}
	for uid, after := range end {
		if _, there := begin[uid]; !there {
			u.Replicas = append(u.Replicas, validity.Replica{Name: after.Name, Node: after.Node, Quota: quota(g), Disturbed: true, Silent: true})
		}
	}
	slices.SortFunc(u.Replicas, func(a, b validity.Replica) int { return strings.Compare(a.Name, b.Name) })
	return u
}

// machineOf a node, for the report.
func machineOf(node string, m machine.Machine) report.Machine {
	return report.Machine{Name: node, CPUModel: m.CPUModel, CPUs: m.CPUs, Flags: m.Flags, Memory: m.Memory, Kernel: m.Kernel}
}

// quota of a replica in CPUs, 0 without one.
func quota(g *v1alpha1.QTLSGateway) float64 {
	if g.Spec.Resources == nil {
		return 0
	}
	return g.Spec.Resources.Limits.Cpu().AsApproximateFloat64()
}
