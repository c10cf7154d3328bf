package benchmark

import (
	"reflect"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/dataplane"
)

// What the kernel tells of a CPU that waits for I/O may fall again, and be told twice.
func TestAMachineIsIdleForAShareOfItsTime(t *testing.T) {
	for _, c := range []struct {
		idle int64 // of 100 more
		want float64
	}{{25, .25}, {-3, 0}, {101, 1}} {
		before := dataplane.Usage{Worker: "8@1", Time: 1, MachineTotal: 1000, MachineIdle: 500}
		after := before
		after.Time, after.MachineTotal, after.MachineIdle = 2, 1100, 500+c.idle
		u := usageOf(sampledJob(t, sample{Name: "web-a", Usage: before}, sample{Name: "web-a", Usage: after}), &v1alpha1.QTLSGateway{})
		if u == nil || u.MachineIdle == nil || *u.MachineIdle != c.want {
			t.Errorf("idle for %d of 100: %+v, want %v", c.idle, u, c.want)
		}
	}
}

// One that is killed again and again is away at both ends of the window.
func TestWhatIsKilledForLackOfMemoryIsEvidenceThoughItWasNeverSampled(t *testing.T) {
	start := time.Date(2026, 6, 1, 12, 0, 0, 900_000_000, time.UTC)
	ended := func(reason string, after time.Duration) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ExitCode: 137, Reason: reason, FinishedAt: metav1.NewTime(start.Add(after).Truncate(time.Second))}
	}
	pod := func(name string, last, now *corev1.ContainerStateTerminated) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "haproxy", LastTerminationState: corev1.ContainerState{Terminated: last}, State: corev1.ContainerState{Terminated: now}}}}}
	}
	u := &usage{Replicas: []validity.Replica{{Name: "sampled"}, {Name: "told", OOMKills: 3}}}
	u.countKills([]corev1.Pod{
		pod("sampled", ended("OOMKilled", time.Millisecond), nil),
		pod("told", ended("OOMKilled", time.Second), nil), // by the kernel's own count
		pod("away", ended("OOMKilled", time.Second), ended("OOMKilled", 2*time.Second)),
		pod("before", ended("OOMKilled", -time.Second), nil),
		pod("crashed", ended("Error", time.Second), nil),
		pod("well", nil, nil),
	}, load.Load{Start: start.UnixNano()}, 0.05)
	want := []validity.Replica{{Name: "sampled", OOMKills: 1}, {Name: "told", OOMKills: 3}, {Name: "away", Node: "node", Quota: 0.05, Disturbed: true, Silent: true, OOMKills: 2}}
	if !reflect.DeepEqual(u.Replicas, want) {
		t.Errorf("%+v, want %+v", u.Replicas, want)
	}
}

// A window that is too short for agents that answer slowly is not longer in another attempt.
func TestOnlyAnOperatorThatWasStartedAnewHasMissedAWindow(t *testing.T) {
	l := load.Load{Version: load.Version, Point: "7d1c/r1-n1-hybrid-Capacity", Phase: load.Capacity, Operation: load.Handshake, Pods: 1, VUs: 32,
		Start: noon.UnixNano(), WarmUp: 10 * time.Second, Window: 20 * time.Second}
	l.Client.Host, l.Client.Port = "web.bench.svc", 443
	text, err := l.Text()
	if err != nil {
		t.Fatal(err)
	}
	all := moments
	for name, c := range map[string]struct {
		since   time.Duration // after the load's start
		has     []string
		inPlace bool
		want    bool
	}{
		"it was there, and took all":             {-time.Minute, all, true, false},
		"it was there, and was late for the end": {-time.Minute, all[:3], true, false},
		"it was there for none":                  {time.Minute, nil, false, true},
		"it came while the load warmed up":       {5 * time.Second, all[3:], false, false},
		"it came within the window, too late":    {28 * time.Second, all[3:], false, true},
		"it came within the window, in time":     {11 * time.Second, all[2:], false, false},
		"it came later, and another took both":   {time.Minute, all[2:], false, false},
		"it came later, and another took one":    {time.Minute, all[2:3], false, true},
		// Who else connects to a gateway in place shows before the load.
		"a gateway in place: it came within the window":          {11 * time.Second, all[2:], true, true},
		"a gateway in place: it came just before the load":       {-time.Second / 2, all[2:], true, true},
		"a gateway in place: it came between the first two":      {-3 * time.Second, all[1:], true, true},
		"a gateway in place: it came later, another took all":    {time.Minute, all, true, false},
		"a gateway in place: it was there, and nobody looked so": {-time.Minute, all[2:], true, false},
	} {
		job := &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: generator.Container, Env: []corev1.EnvVar{{Name: load.Variable, Value: text}}}}}}}}
		for _, which := range c.has {
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, "samples")
		}
		if got := missed(job, noon.Add(c.since), c.inPlace); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
