{{- /* Environment of a container: the URL of the database, unless it is in the configuration. */ -}}
{{- define "evenkeel.env" -}}
- name: EVENKEELD_CONFIG
  value: /etc/evenkeel/config/evenkeeld.toml
{{- if not .Values.database.url }}
- name: EVENKEELD_DATABASE__URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.urlSecret.name }}
      key: {{ .Values.database.urlSecret.key }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Volumes of every pod: configuration, database, room for temporary files. `config` is the name of the ConfigMap. */ -}}
{{- define "evenkeel.volumes" -}}
{{- $database := .root.Values.database -}}
- name: config
  configMap:
    name: {{ .config }}
- name: data
  emptyDir:
    sizeLimit: 64Mi
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- if or $database.passwordSecret.name $database.caSecret.name }}
- name: database
  projected:
    defaultMode: 0440
    sources:
      {{- with $database.passwordSecret }}
      {{- if .name }}
      - secret:
          name: {{ .name }}
          items:
            - key: {{ .key }}
              path: password
      {{- end }}
      {{- end }}
      {{- with $database.caSecret }}
      {{- if .name }}
      - secret:
          name: {{ .name }}
          items:
            - key: {{ .key }}
              path: ca.crt
      {{- end }}
      {{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "evenkeel.volumeMounts" -}}
- name: config
  mountPath: /etc/evenkeel/config
  readOnly: true
- name: data
  mountPath: /var/lib/evenkeel
- name: tmp
  mountPath: /tmp
{{- if or .Values.database.passwordSecret.name .Values.database.caSecret.name }}
- name: database
  mountPath: /etc/evenkeel/database
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Volumes with keys and certificates. Every service needs all of them. */ -}}
{{- define "evenkeel.keyVolumes" -}}
- name: keys
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .Values.keys.secret }}
          items:
            - key: signing.pem
              path: signing.pem
            - key: operators-signing.pem
              path: operators/signing.pem
            {{- range .Values.keys.additionalFiles }}
            - key: {{ .key }}
              path: {{ .path }}
            {{- end }}
- name: ca
  secret:
    secretName: {{ .Values.keys.secret }}
    defaultMode: 0440
    items:
      - key: ca.pem
        path: ca.pem
      - key: ca-key.pem
        path: ca-key.pem
{{- range $name, $listener := dict "rest" .Values.rest "southbound" .Values.southbound }}
{{- if eq $listener.tls "secret" }}
- name: {{ $name }}-tls
  secret:
    secretName: {{ required (printf "%s.tlsSecret is required with %s.tls = secret" $name $name) $listener.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{- define "evenkeel.keyVolumeMounts" -}}
- name: keys
  mountPath: /etc/evenkeel/keys
  readOnly: true
- name: ca
  mountPath: /etc/evenkeel/ca
  readOnly: true
{{- range $name, $listener := dict "rest" .Values.rest "southbound" .Values.southbound }}
{{- if eq $listener.tls "secret" }}
- name: {{ $name }}-tls
  mountPath: /etc/evenkeel/tls/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "evenkeel.cacheVolume" -}}
- name: cache
{{- if eq .type "emptyDir" }}
  emptyDir:
    sizeLimit: {{ .size }}
{{- else }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
{{- end }}
{{- end -}}

{{- /* Settings of a pod that do not depend on what it runs. Kubernetes would set variables such as EVENKEELD_PORT for a
Service with that name, and evenkeeld would refuse them as unknown settings: so no service links. */ -}}
{{- define "evenkeel.podSettings" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
