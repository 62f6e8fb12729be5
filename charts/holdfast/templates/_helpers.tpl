{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 48, so that a suffix such as -gateway-uplink fits into a label. */}}
{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of the Deployment's selector, which can never be changed: keep it small. */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "holdfast.nodeSelector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "holdfast.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: holdfast
{{- end -}}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Not empty: there is one. Without node agents no session could leave, and it would have nothing to say. */}}
{{- define "holdfast.webhook" -}}
{{- if and .Values.webhook.enabled .Values.nodeAgent.enabled -}}
{{- printf "%s-webhook" (include "holdfast.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.gateway" -}}
{{- printf "%s-gateway" (include "holdfast.fullname" .) -}}
{{- end -}}

{{- define "holdfast.gatewaySelector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "holdfast.gatewaySecret" -}}
{{- default (include "holdfast.gateway" .) .Values.gateway.tls.existingSecret -}}
{{- end -}}

{{- define "holdfast.account" -}}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The accounts that the admission policies are about, as the API server names them. */}}
{{- define "holdfast.operatorUser" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "holdfast.account" .) -}}
{{- end -}}

{{- define "holdfast.agentUser" -}}
{{- printf "system:serviceaccount:%s:%s-node" .Release.Namespace (include "holdfast.fullname" .) -}}
{{- end -}}

{{- define "holdfast.gatewayUser" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "holdfast.gateway" .) -}}
{{- end -}}

{{/* Not empty: the API server has ValidatingAdmissionPolicies (since Kubernetes 1.30), and they are wanted. */}}
{{- define "holdfast.policies" -}}
{{- if and .Values.admission.policies (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
yes
{{- end -}}
{{- end -}}

{{/* A list of strings in CEL. */}}
{{- define "holdfast.celList" -}}
[{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ squote $one }}{{ end }}]
{{- end -}}

{{/* In CEL: whether the namespace of a request is one that this holdfast serves. */}}
{{- define "holdfast.served" -}}
!(request.namespace in {{ include "holdfast.celList" (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) }})
{{- with .Values.operator.watchNamespaces }} && request.namespace in {{ include "holdfast.celList" . }}{{ end }}
{{- range $key, $value := .Values.operator.namespaceLabels }} && namespaceObject.metadata.?labels[?{{ squote $key }}].orValue('') == {{ squote $value }}{{ end }}
{{- end -}}

{{/* A policy is nothing without its binding. Give it the policy's name. */}}
{{- define "holdfast.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "holdfast.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}

{{- define "holdfast.keysSecret" -}}
{{- default (printf "%s-keys" (include "holdfast.fullname" .)) .Values.keys.existingSecret -}}
{{- end -}}

{{/* What holdfast-keys is to make, and where it runs. */}}
{{- define "holdfast.keysPod" -}}
serviceAccountName: {{ include "holdfast.fullname" .root }}-{{ .account }}
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: OnFailure
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
- name: keys
  image: {{ include "holdfast.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [holdfast-keys, {{ .verb }}]
  env:
  - {name: HOLDFAST_NAMESPACE, value: {{ .root.Release.Namespace | quote }}}
  - {name: HOLDFAST_FULLNAME, value: {{ include "holdfast.fullname" .root | quote }}}
  - {name: HOLDFAST_KEYS_GENERATION, value: {{ .root.Values.keys.generation | quote }}}
  - {name: HOLDFAST_KEYS_CA_GENERATION, value: {{ .root.Values.keys.caGeneration | quote }}}
  {{- $gateway := .root.Values.gateway }}
  - {name: HOLDFAST_MAKE_KEYS, value: {{ and .root.Values.nodeAgent.enabled (not .root.Values.keys.existingSecret) | quote }}}
  - {name: HOLDFAST_MAKE_GATEWAY, value: {{ and $gateway.enabled (not $gateway.tls.existingSecret) | quote }}}
  - {name: HOLDFAST_MAKE_WEBHOOK, value: {{ ne (include "holdfast.webhook" .root) "" | quote }}}
  - {name: HOLDFAST_MAKE_SSH, value: {{ and $gateway.enabled $gateway.ssh.enabled (not $gateway.ssh.hostKeySecret) | quote }}}
  - {name: HOLDFAST_HOSTS, value: {{ join "," $gateway.hosts | quote }}}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
{{- end -}}

{{- define "holdfast.hook" -}}
helm.sh/hook: {{ .when }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
