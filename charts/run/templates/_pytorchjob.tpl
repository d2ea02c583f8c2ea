{{/*
run.pytorchjob: the training. Facts of the training operator v1.9:

- Workers only, with an elasticPolicy: a Master makes the operator inject an init container that Pod Security
  `restricted` refuses; without elasticPolicy workers get no rendezvous and hang. min = max: nothing is elastic.
- restartPolicy ExitCode: exit codes below 128 end the job, the others get new pods. maxRestarts 0: not in the pod too.
- nprocPerNode left out means as many processes as the node has CPUs.
- cleanPodPolicy None keeps the pods, and so their logs.
*/}}
{{- define "run.pytorchjob" -}}
{{- $run := .Values.run -}}
{{- $labels := include "run.labels" (dict "context" . "component" "training") -}}
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {{ include "run.name" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  nprocPerNode: {{ include "run.scalar" $run.processesPerNode | quote }}
  runPolicy:
    cleanPodPolicy: None
  elasticPolicy:
    rdzvBackend: c10d
    rdzvId: {{ include "run.name" . | quote }}
    minReplicas: {{ int $run.nodes }}
    maxReplicas: {{ int $run.nodes }}
    maxRestarts: 0
  pytorchReplicaSpecs:
    Worker:
      replicas: {{ int $run.nodes }}
      restartPolicy: ExitCode
      template:
        metadata:
          labels:
            {{- $labels | nindent 12 }}
        spec:
          {{- include "run.pod" . | nindent 10 }}
          containers:
            - name: pytorch # the operator insists on this name
              image: {{ include "run.image" $run.image | quote }}
              imagePullPolicy: {{ $run.image.pullPolicy | quote }}
              command: [python, -m, trainer]
              env:
                {{- include "run.environment" . | nindent 16 }}
              {{- with include "run.pytorchjob.resources" . }}
              resources:
                {{- . | nindent 16 }}
              {{- end }}
              {{- include "run.container" . | nindent 14 }}
              volumeMounts:
                {{- include "run.mounts" . | nindent 16 }}
                - name: shm
                  mountPath: /dev/shm
          volumes:
            {{- include "run.volumes" . | nindent 12 }}
            - name: shm # 64 MiB without it
              emptyDir:
                medium: Memory
                sizeLimit: {{ $run.sharedMemory.sizeLimit | quote }}
{{- end }}

{{/* run.pytorchjob.resources: run.resources, and one accelerator for every process. */}}
{{- define "run.pytorchjob.resources" -}}
{{- $run := .Values.run -}}
{{- $limits := $run.resources.limits | default dict -}}
{{- with $run.accelerator -}}
  {{- if or (hasKey $limits .) (hasKey ($run.resources.requests | default dict) .) -}}
    {{- fail (printf "run.resources: %s is one per process by run.accelerator, leave it out or set run.accelerator=\"\"" .) -}}
  {{- end -}}
  {{- $limits = merge (dict . $run.processesPerNode) $limits -}}
{{- end -}}
{{- include "run.resources" (dict "limits" $limits "requests" $run.resources.requests) | trim -}}
{{- end }}
