Feature: Try Task
  Errors that are caught, and trying again

  Scenario: An error of the right kind is caught
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: try, version: '1.0.0' }
    do:
      - tryGet:
          try:
            - getPet: { call: http, with: { method: get, endpoint: 'https://pets.example/pet' } }
          catch:
            errors: { with: { type: 'https://serverlessworkflow.io/spec/1.0.0/errors/communication', status: 404 } }
            as: err
            do:
              - setError: { set: { error: '${ $err.status }', at: '${ $err.instance }' } }
    """
    And calls of 'https://pets.example/pet' answer 404:
    """yaml
    null
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    error: 404
    at: /do/0/tryGet/try/0/getPet
    """

  Scenario: An error of another kind is not
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: try, version: '1.0.0' }
    do:
      - tryGet:
          try:
            - getPet: { call: http, with: { method: get, endpoint: 'https://pets.example/pet' } }
          catch:
            errors: { with: { status: 404 } }
            do:
              - setError: { set: { caught: true } }
    """
    And calls of 'https://pets.example/pet' answer 503:
    """yaml
    null
    """
    When the workflow is executed
    Then the workflow should fault with error:
    """yaml
    status: 503
    instance: /do/0/tryGet/try/0/getPet
    """

  Scenario: It is tried again until it works
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: try, version: '1.0.0' }
    do:
      - tryGet:
          try:
            - getPet: { call: http, with: { method: get, endpoint: 'https://pets.example/pet' } }
          catch:
            retry: { delay: { seconds: 3 }, backoff: { exponential: {} }, limit: { attempt: { count: 5 } } }
    """
    And calls of 'https://pets.example/pet' answer 503:
    """yaml
    null
    """
    And calls of 'https://pets.example/pet' answer 503:
    """yaml
    null
    """
    And calls of 'https://pets.example/pet' answer 200:
    """yaml
    name: Rex
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    name: Rex
    """
    And 'getPet' should have executed 3 times
