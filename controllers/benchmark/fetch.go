package benchmark

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/conditions"
)

// state is all that one step depends on.
type state struct {
	benchmark *v1alpha1.QTLSBenchmark
	plan      plan.Plan
	// records, whole, where the status or the report has to be made of them; nil where
	// not. What comes next follows from what is observed of them.
	records records
	// source is the gateway that the spec names, measured the one that is
	// measured: itself, or its copy. Either is nil where it is not there.
	source, measured *v1alpha1.QTLSGateway
	jobs             []batchv1.Job
	// peers' Deployments that are there, by the peers' names.
	peers    map[string]*appsv1.Deployment
	observed plan.Observed
	// inHSM are the modes that are measured with a key in an HSM, and hsm what that is.
	// They are read for the report only.
	inHSM map[string]bool
	hsm   []report.HSMMember
	// kubernetes is the API server's version.
	kubernetes string
}

// aborted: what is not measured yet will not be.
func (s state) aborted() bool { return s.benchmark.Status.Phase == v1alpha1.BenchmarkAborting }

// ending: nothing more is measured, and all is put back as it was.
func (s state) ending() bool {
	return s.aborted() || s.benchmark.Status.Phase == v1alpha1.BenchmarkRestoring || s.benchmark.Status.Phase.Over()
}

func (r *Reconciler) fetch(ctx context.Context, b *v1alpha1.QTLSBenchmark, now time.Time) (state, error) {
	s := state{benchmark: b, plan: plan.Of(b.Spec, b.Status.Plan.Seed), kubernetes: r.Kubernetes}
	var err error
	var recorded map[string]plan.Record
	if !b.Status.Phase.Over() { // of one that is, the status and the report have what was measured
		if recorded, err = r.summaries(ctx, b); err != nil {
			return s, err
		}
	}
	if s.source, err = r.gateway(ctx, b.Namespace, b.Spec.GatewayRef.Name); err != nil {
		return s, err
	}
	s.measured = s.source
	if b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace {
		if s.measured, err = r.gateway(ctx, b.Namespace, copyName(b)); err != nil {
			return s, err
		}
	}
	s.observed = plan.Observed{Now: now, Created: b.CreationTimestamp.Time, Phase: b.Status.Phase, Cancelled: b.Spec.Cancel, Records: recorded, Gateway: observe(b, s.source, s.measured, now)}
	if s.peers, err = r.peerDeployments(ctx, b); err != nil {
		return s, err
	}
	s.observed.PeersThere = len(s.peers) > 0
	if g := s.observed.Gateway; g.Held && !b.Status.Phase.Over() {
		if s.observed.Peers, err = r.observePeers(ctx, b, s.peers, g.Replicas, now); err != nil {
			return s, err
		}
	}
	s.observed.Started = s.observed.Gateway.Since // where the status does not know yet
	if b.Status.StartTime != nil {
		s.observed.Started = b.Status.StartTime.Time
	}
	var list batchv1.JobList
	if err := r.List(ctx, &list, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(b.Name)}); err != nil {
		return s, fmt.Errorf("Jobs of QTLSBenchmark %s: %w", b.Name, err)
	}
	for _, job := range list.Items {
		if !metav1.IsControlledBy(&job, b) {
			continue
		}
		identity, err := generator.IdentityOf(&job)
		if err != nil {
			continue // not the operator's, whatever its owner says
		}
		j := plan.Job{Name: job.Name, Measurement: identity.Measurement, Attempt: identity.Attempt, State: stateOf(&job), Unobserved: missed(&job, r.since, b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace)}
		if j.State == plan.JobFailed {
			if j.Message, err = r.failure(ctx, &job); err != nil {
				return s, err
			}
		}
		if j.State == plan.JobActive {
			if j.StuckReason, j.Stuck, j.Start, err = r.stuck(ctx, &job, now); err != nil {
				return s, err
			}
		}
		s.jobs, s.observed.Jobs = append(s.jobs, job), append(s.observed.Jobs, j)
	}
	return s, nil
}

// gateway as it is now; nil if it is not there.
func (r *Reconciler) gateway(ctx context.Context, namespace, name string) (*v1alpha1.QTLSGateway, error) {
	g := &v1alpha1.QTLSGateway{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, g)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("QTLSGateway %s: %w", name, err)
	}
	return g, nil
}

func stateOf(job *batchv1.Job) plan.JobState {
	if job.DeletionTimestamp != nil {
		return plan.JobGone
	}
	for _, c := range job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return plan.JobComplete
		case c.Type == batchv1.JobFailed:
			return plan.JobFailed
		}
	}
	return plan.JobActive
}

// podsOf a Job.
func (r *Reconciler) podsOf(ctx context.Context, job *batchv1.Job) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.APIReader.List(ctx, &list, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return nil, fmt.Errorf("pods of Job %s: %w", job.Name, err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !metav1.IsControlledBy(&p, job) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// stuck says why the load of an active Job has not begun when it was to, at start:
// Kubernetes has made no pods, found no nodes for them, or cannot start their containers.
func (r *Reconciler) stuck(ctx context.Context, job *batchv1.Job, now time.Time) (reason, why string, start time.Time, err error) {
	l, err := generator.LoadIn(job)
	if err != nil {
		return "", "", start, err
	}
	if start = time.Unix(0, l.Start); !now.After(start.Add(load.Late)) {
		return "", "", start, nil
	}
	pods, err := r.podsOf(ctx, job)
	if err != nil {
		return "", "", start, err
	}
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.Status.Phase != corev1.PodPending:
		case pod.Spec.NodeName == "":
			return v1alpha1.ReasonGeneratorUnschedulable, fmt.Sprintf("Job %q: %s; free or add nodes, or change spec.generator (resources, nodeSelector, tolerations) in another benchmark",
				job.Name, cmp.Or(lastWords(pod), fmt.Sprintf("pod %q has no node", pod.Name))), start, nil
		case cannotRun(pod):
			remedy := fmt.Sprintf("`kubectl describe pod %s` tells more", pod.Name)
			if lacksImage(pod) {
				remedy = fmt.Sprintf("the image is the chart's k6Image, pulled with its imagePullSecrets, which namespace %q has to have", job.Namespace)
			}
			return v1alpha1.ReasonGeneratorFailed, fmt.Sprintf("Job %q: %s; %s", job.Name, lastWords(pod), remedy), start, nil
		}
	}
	if len(pods) < l.Pods {
		return v1alpha1.ReasonGeneratorUnschedulable, fmt.Sprintf("Job %q has %d of %d pods; a ResourceQuota, a LimitRange or an admission webhook of namespace %q may refuse them, which `kubectl describe job %s` tells; allow them, or change spec.generator.resources in another benchmark",
			job.Name, len(pods), l.Pods, job.Namespace, job.Name), start, nil
	}
	return "", "", start, nil
}

// lacksImage says whether the image of a pod's container cannot be had.
func lacksImage(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}, c.State.Waiting.Reason)
	})
}

// failure says why a Job failed: what Kubernetes says, and the last words of its
// pods.
func (r *Reconciler) failure(ctx context.Context, job *batchv1.Job) (string, error) {
	message := fmt.Sprintf("Job %q failed", job.Name)
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed {
			message += fmt.Sprintf(": %s: %s", c.Reason, c.Message)
		}
	}
	pods, err := r.podsOf(ctx, job)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if words := lastWords(&pods[i]); words != "" {
			message += "; " + words
		}
	}
	return conditions.Shorten(message, 1500), nil
}

// lastOf what a container said.
func lastOf(said string) string {
	said = strings.TrimSpace(said)
	if cut := 600; len(said) > cut {
		said = "…" + strings.ToValidUTF8(said[len(said)-cut:], "")
	}
	return said
}

// lastWords of a pod that did not end well.
func lastWords(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case t != nil && t.ExitCode != 0:
			return fmt.Sprintf("pod %q ended with exit code %d (%s): %s", pod.Name, t.ExitCode, t.Reason, lastOf(t.Message))
		case w != nil:
			if before := c.LastTerminationState.Terminated; before != nil && before.ExitCode != 0 {
				return fmt.Sprintf("pod %q waits (%s), for it ended with exit code %d (%s): %s", pod.Name, w.Reason, before.ExitCode, before.Reason, lastOf(before.Message))
			}
			return fmt.Sprintf("pod %q waits: %s: %s", pod.Name, w.Reason, w.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %q has no node: %s", pod.Name, c.Message)
		}
	}
	return ""
}
